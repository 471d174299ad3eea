// Small pieces that every kernel of a tier uses: unrolling with compile-time indices, half floats, bf16.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(GM_avx2) || defined(GM_avx512)
#include <immintrin.h>
#endif

#define GM_INLINE inline __attribute__((always_inline))

namespace gm::GM_TIER {
namespace {

template <int I>
struct Index {
  static constexpr int value = I;
  constexpr operator int() const { return I; }
};

// Calls f(Index<0>), f(Index<1>) ... f(Index<N - 1>): g++ 12 keeps arrays of accumulators in registers only if every
// index is a compile-time constant.
template <int N, class F>
GM_INLINE void unroll(F&& f) {
  if constexpr (N > 0) {
    unroll<N - 1>(f);
    f(Index<N - 1>{});
  }
}

GM_INLINE float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
GM_INLINE uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

GM_INLINE float bf16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

// Nearest even; a NaN stays one.
GM_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact for every half, subnormals, infinities and NaN included. The product by 2^112 moves the exponent's bias.
GM_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  const float value = bits_to_float(magnitude << 13) * 0x1p112f;
  return bits_to_float(float_to_bits(value) | sign);
}

}  // namespace
}  // namespace gm::GM_TIER
