// The inside of a buffer of quantized rows; only the kernels of a tier look into it.
#pragma once
#include "linear.h"

namespace gm::GM_TIER {
namespace {

// One row: arrays one after the other. What a kernel needs of a group is ready to be broadcast.
struct QuantizedRow {
  int8_t* codes;         // [k], -127..127
  float* scales;         // [k / 32]
  int32_t* offsets;      // [k / 32], -8 * the sum of the codes of a group of 32
  float* scaled_sums;    // [k / 32], scale * the sum
  int32_t* offsets16;    // [k / 16], of groups of 16
  float* scaled_sums16;  // [k / 16]
};

// An odd number of cache lines: equal columns of neighbouring rows never fall into one set of the first cache.
inline int64_t quantized_row_bytes(int64_t k) { return (k + k / block_k * 28 + 63) / 64 * 64 | 64; }

inline QuantizedRow quantized_row(const void* buffer, int64_t row, int64_t k) {
  auto* p = const_cast<uint8_t*>(static_cast<const uint8_t*>(buffer)) + row * quantized_row_bytes(k);
  const int64_t groups = k / block_k;
  QuantizedRow result;
  result.codes = reinterpret_cast<int8_t*>(p);
  result.scales = reinterpret_cast<float*>(p + k);
  result.offsets = reinterpret_cast<int32_t*>(p + k + 4 * groups);
  result.scaled_sums = reinterpret_cast<float*>(p + k + 8 * groups);
  result.offsets16 = reinterpret_cast<int32_t*>(p + k + 12 * groups);
  result.scaled_sums16 = reinterpret_cast<float*>(p + k + 20 * groups);
  return result;
}

}  // namespace
}  // namespace gm::GM_TIER
