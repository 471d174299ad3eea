// What each file of a tier defines; table.cpp gathers it. Included only by files that are compiled once per tier.
#pragma once
#include "kernels.h"

namespace gm::GM_TIER {

// linear_q4.cpp
void linear_q4_g32(const LinearArgs& args);
void linear_q4_g32_min(const LinearArgs& args);
void linear_q4_g16(const LinearArgs& args);
void linear_q4_g16_min(const LinearArgs& args);
// linear_q8.cpp
void linear_q8_g32(const LinearArgs& args);
void linear_q8_g32_min(const LinearArgs& args);
void linear_q8_g16(const LinearArgs& args);
// linear_float.cpp
void linear_f16(const LinearArgs& args);
void linear_bf16(const LinearArgs& args);
void linear_f32(const LinearArgs& args);
// rows.cpp
int64_t quantized_bytes(int64_t num_rows, int64_t k);
void quantize(const QuantizeArgs& args);
void rms_norm(const NormArgs& args);
void act_mul(const ActMulArgs& args);
void add(const float* x, const float* y, float* out, int64_t count);
void softcap(const float* x, float cap, float* out, int64_t count);
// embed.cpp
void embed(const EmbedArgs& args);
// rope.cpp
void rope_table(const RopeTableArgs& args);
void rope_store(const RopeStoreArgs& args);
// attention.cpp
void attend(const AttentionArgs& args, const AttentionItem& item);
void merge_attention(const AttentionArgs& args, const AttentionItem* items, int64_t num_items, int64_t merge_begin,
                     int64_t merge_end);
// sample.cpp
int64_t sample_scratch_bytes(int64_t vocab);
void sample(const SampleArgs& args);

}  // namespace gm::GM_TIER
