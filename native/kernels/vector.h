// Sixteen floats as one value, on every instruction set: the compiler cuts them into what the machine has.
#pragma once
#include "simd.h"

namespace gm::GM_TIER {
namespace {

typedef float Float16 __attribute__((vector_size(64), aligned(64)));
typedef uint32_t Bits16 __attribute__((vector_size(64), aligned(64)));
typedef int32_t Int16 __attribute__((vector_size(64), aligned(64)));
typedef float Float16Unaligned __attribute__((vector_size(64), aligned(4)));

GM_INLINE Float16 splat(float value) { return Float16{} + value; }
GM_INLINE Float16 load16(const float* p) { return *reinterpret_cast<const Float16Unaligned*>(p); }
GM_INLINE void store16(float* p, Float16 value) { *reinterpret_cast<Float16Unaligned*>(p) = value; }

GM_INLINE float max16(Float16 v) {
  float lanes[16];
  store16(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

}  // namespace
}  // namespace gm::GM_TIER
