// The inside of a buffer of quantized rows; only the kernels of a tier look into it.
#pragma once
#include "linear.h"

namespace gm::GM_TIER {
namespace {

// Arrays one after the other, each 64-byte aligned: codes s8 [M][K]; scale f32 [M][K/32]; sum32 i32 [M][K/32], the sum of
// the codes of a group of 32; scaled_sum f32 [M][K/32], scale * sum32; sum16 i32 [M][K/16]; scaled_sum16 f32 [M][K/16].
struct QuantizedRows {
  int8_t* codes;
  float* scales;
  int32_t* sums;
  float* scaled_sums;
  int32_t* sums16;
  float* scaled_sums16;
};

inline int64_t align64(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

inline QuantizedRows quantized_rows(const void* buffer, int64_t num_rows, int64_t k) {
  auto* p = const_cast<uint8_t*>(static_cast<const uint8_t*>(buffer));
  const int64_t groups = num_rows * (k / 32);
  QuantizedRows rows;
  rows.codes = reinterpret_cast<int8_t*>(p);
  p += align64(num_rows * k);
  rows.scales = reinterpret_cast<float*>(p);
  p += align64(groups * 4);
  rows.sums = reinterpret_cast<int32_t*>(p);
  p += align64(groups * 4);
  rows.scaled_sums = reinterpret_cast<float*>(p);
  p += align64(groups * 4);
  rows.sums16 = reinterpret_cast<int32_t*>(p);
  p += align64(groups * 8);
  rows.scaled_sums16 = reinterpret_cast<float*>(p);
  return rows;
}

}  // namespace
}  // namespace gm::GM_TIER
