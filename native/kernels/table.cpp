// The kernels of one tier, gathered.
#include "tier.h"

namespace gm {

const Kernels* GM_TABLE() {
  static const Kernels table = {
      GM_TIER_NAME,
      {GM_TIER::linear_q4_g32, GM_TIER::linear_q4_g32_min, GM_TIER::linear_q4_g16, GM_TIER::linear_q4_g16_min,
       GM_TIER::linear_q8_g32, GM_TIER::linear_q8_g32_min, GM_TIER::linear_q8_g16, GM_TIER::linear_f16, GM_TIER::linear_bf16,
       GM_TIER::linear_f32},
      GM_TIER::quantized_bytes,
      GM_TIER::quantize,
      GM_TIER::rms_norm,
      GM_TIER::act_mul,
      GM_TIER::embed,
      GM_TIER::add,
      GM_TIER::softcap,
      GM_TIER::rope_table,
      GM_TIER::rope_store,
      GM_TIER::attend,
      GM_TIER::merge_attention,
      GM_TIER::sample_scratch_bytes,
      GM_TIER::sample,
  };
  return &table;
}

}  // namespace gm
