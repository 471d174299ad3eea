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

// A line of 16 x 2 bf16: the even and the odd elements as floats.
GM_INLINE Float16 even_of(const void* line) { return reinterpret_cast<Float16>(*static_cast<const Bits16*>(line) << 16); }
GM_INLINE Float16 odd_of(const void* line) { return reinterpret_cast<Float16>(*static_cast<const Bits16*>(line) & 0xffff0000u); }

GM_INLINE float sum16(Float16 v) {
  float lanes[16];
  store16(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

GM_INLINE float max16(Float16 v) {
  float lanes[16];
  store16(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

// 2^x for x <= 0, relative error below 2e-7; 0 below -126 and for -infinity; NaN stays NaN.
GM_INLINE Float16 exp2_negative(Float16 x) {
  const Float16 magic = splat(12582912.0f);
  const Float16 clamped = x < -126.0f ? splat(-126.0f) : x;
  const Float16 shifted = clamped + magic;
  const Float16 f = clamped - (shifted - magic);
  Float16 p = splat(1.5353362e-4f);
  p = p * f + 1.3398874e-3f;
  p = p * f + 9.6184373e-3f;
  p = p * f + 5.5503324e-2f;
  p = p * f + 2.4022648e-1f;
  p = p * f + 6.9314720e-1f;
  p = p * f + 1.0f;
  const Float16 scale = reinterpret_cast<Float16>((reinterpret_cast<Bits16>(shifted) + 127u) << 23);
  return x < -126.0f ? splat(0.0f) : p * scale;
}

GM_INLINE float exp2_negative_one(float x) { return exp2_negative(splat(x))[0]; }

}  // namespace
}  // namespace gm::GM_TIER
