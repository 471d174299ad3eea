// Floats: as many as one register of this tier holds, with the operators of the language.
// No multiply-add is fused unless multiply_add says so: these files are compiled with -ffp-contract=off.
#pragma once
#include "simd.h"

namespace gm::GM_TIER {
namespace {

#if defined(GM_avx512)
constexpr int num_lanes = 16;
#elif defined(GM_avx2)
constexpr int num_lanes = 8;
#else
constexpr int num_lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * num_lanes)));
typedef int32_t Ints __attribute__((vector_size(4 * num_lanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * num_lanes)));

GM_INLINE Floats load(const float* p) {
  Floats value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
GM_INLINE void store(float* p, Floats value) { std::memcpy(p, &value, sizeof value); }
GM_INLINE Floats all(float value) {
#if defined(GM_avx512)
  return _mm512_set1_ps(value);
#elif defined(GM_avx2)
  return _mm256_set1_ps(value);
#else
  return Floats{value, value, value, value};  // not Floats{} + value, which would turn -0 into 0
#endif
}
GM_INLINE Bits bits_of(Floats value) { return reinterpret_cast<Bits>(value); }
GM_INLINE Floats floats_of(Bits bits) { return reinterpret_cast<Floats>(bits); }
GM_INLINE Floats magnitude(Floats value) { return floats_of(bits_of(value) & 0x7fffffffu); }

GM_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(GM_avx512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(GM_avx2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
#if !defined(GM_avx512) && !defined(GM_avx2)
typedef uint16_t Words __attribute__((vector_size(16)));

GM_INLINE Words four_words(const void* p) {
  typedef uint64_t Pair __attribute__((vector_size(16)));
  uint64_t four;
  std::memcpy(&four, p, 8);
  return reinterpret_cast<Words>(Pair{four, 0});
}
#endif

// `num_lanes` halves as floats; every half is exact, subnormals, infinities and NaN included.
GM_INLINE Floats halves(const void* p) {
#if defined(GM_avx512)
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(GM_avx2)
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#else
  const Bits half = reinterpret_cast<Bits>(__builtin_shufflevector(four_words(p), Words{}, 0, 8, 1, 9, 2, 10, 3, 11));
  const Bits sign = (half & 0x8000u) << 16, size = (half & 0x7fffu) << 13;
  // The product by 2^112 moves the exponent's bias.
  const Floats value = reinterpret_cast<Ints>(size) >= 0x0f800000 ? floats_of(size | 0x7f800000u) : floats_of(size) * 0x1p112f;
  return floats_of(bits_of(value) | sign);
#endif
}

// The same of bf16.
GM_INLINE Floats brain_halves(const void* p) {
#if defined(GM_avx512)
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
#elif defined(GM_avx2)
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
#else
  return reinterpret_cast<Floats>(__builtin_shufflevector(Words{}, four_words(p), 0, 8, 1, 9, 2, 10, 3, 11));
#endif
}

GM_INLINE Floats multiply_add(Floats a, Floats b, float c) { return multiply_add(a, b, all(c)); }

// In halves: always the same order.
GM_INLINE float sum_of(Floats value) {
  float lanes[num_lanes];
  store(lanes, value);
  for (int width = num_lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace
}  // namespace gm::GM_TIER
