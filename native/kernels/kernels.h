// The table of kernels of one tier. A tier is chosen once for the process: portable, avx2 or avx512.
// Kernel sources are compiled once per tier inside `namespace gm::GM_TIER`, with no templates or inline functions
// of external linkage, so that the linker can never mix the instruction sets.
#pragma once

#include "attention.h"
#include "linear.h"
#include "sample.h"

namespace gm {

struct Kernels {
  const char* tier;
  // linear.h
  LinearFn linear[num_formats];
  int64_t (*quantized_bytes)(int64_t num_rows, int64_t k);
  void (*quantize)(const QuantizeArgs&);
  void (*rms_norm)(const NormArgs&);
  void (*act_mul)(const ActMulArgs&);
  void (*embed)(const EmbedArgs&);
  void (*add)(const float* x, const float* y, float* out, int64_t count);
  void (*softcap)(const float* x, float cap, float* out, int64_t count);
  // attention.h
  void (*rope_table)(const RopeTableArgs&);
  void (*rope_store)(const RopeStoreArgs&);
  void (*attend)(const AttentionArgs&, const AttentionItem&);
  void (*merge_attention)(const AttentionArgs&, const AttentionItem* items, int64_t num_items, int64_t merge_begin,
                          int64_t merge_end);
  // sample.h
  int64_t (*sample_scratch_bytes)(int64_t vocab);
  void (*sample)(const SampleArgs&);
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();  // null if not compiled for this architecture
const Kernels* kernels_avx512();

}  // namespace gm
