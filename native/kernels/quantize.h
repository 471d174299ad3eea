// Groups of 32 floats as int8: scale = largest magnitude / 127, codes = round to even(x * (127 / largest)).
// A group below 1e-30 is zero; a group with an infinity or a NaN has NaN for its scale and codes of zero, so that every
// result of its row becomes NaN. All tiers give the same bits.
#pragma once
#include "math.h"
#include "quantized_rows.h"

namespace gm::GM_TIER {
namespace {

constexpr uint32_t infinity_bits = 0x7f800000u;
constexpr float smallest_group = 1e-30f;

#if defined(GM_avx512) || defined(GM_avx2)

// Lane i of the result: the largest lane of vi. Integers, as magnitudes of floats order like their bits and NaN is largest.
GM_INLINE __m128i largest_of_four(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
  const __m256i a = _mm256_max_epi32(_mm256_unpacklo_epi32(v0, v1), _mm256_unpackhi_epi32(v0, v1));
  const __m256i b = _mm256_max_epi32(_mm256_unpacklo_epi32(v2, v3), _mm256_unpackhi_epi32(v2, v3));
  const __m256i c = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  return _mm_max_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

// Lane i of either half of the result: the sum of that half of vi.
GM_INLINE __m256i half_sums_of_four(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
  const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(v0, v1), _mm256_unpackhi_epi32(v0, v1));
  const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(v2, v3), _mm256_unpackhi_epi32(v2, v3));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

GM_INLINE __m128i minus_8_times(__m128i v) { return _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), v), 3); }
GM_INLINE __m256i minus_8_times(__m256i v) { return _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), v), 3); }

#if defined(GM_avx512)

GM_INLINE __m256i magnitude_max(const float* x) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  const __m512i m =
      _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x), mask), _mm512_and_si512(_mm512_loadu_si512(x + 16), mask));
  return _mm256_max_epi32(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
}

GM_INLINE __m256i codes_of(const float* x, __m128 inverse, __m128i is_finite) {
  const __m512 factor = _mm512_broadcastss_ps(inverse);
  const __mmask16 keep = static_cast<__mmask16>(_mm_cvtsi128_si32(is_finite));
  const __m512i low = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(_mm512_loadu_ps(x), factor));
  const __m512i high = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(_mm512_loadu_ps(x + 16), factor));
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
}

GM_INLINE __m256i sums_of_4(__m256i codes) { return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes); }

#else

GM_INLINE __m256i magnitude_max(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  const auto at = [&](int i) { return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), mask); };
  return _mm256_max_epi32(_mm256_max_epi32(at(0), at(8)), _mm256_max_epi32(at(16), at(24)));
}

GM_INLINE __m256i codes_of(const float* x, __m128 inverse, __m128i is_finite) {
  const __m256 factor = _mm256_broadcastss_ps(inverse);
  const __m256i keep = _mm256_broadcastd_epi32(is_finite);
  const auto at = [&](int i) {
    return _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor)), keep);
  };
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(at(0), at(8)), _mm256_packs_epi32(at(16), at(24)));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

GM_INLINE __m256i sums_of_4(__m256i codes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
}

#endif

// N = 4, 2 or 1 groups from `group` on; x is their first column.
template <int N>
GM_INLINE void quantize_some(const float* x, const QuantizedRow& row, int64_t group) {
  constexpr int i1 = N > 1 ? 1 : 0, i2 = N > 2 ? 2 : 0, i3 = N > 2 ? 3 : i1;
  __m256i most[N], codes[N];
  unroll<N>([&](auto i) { most[i] = magnitude_max(x + i * block_k); });
  const __m128i bits = largest_of_four(most[0], most[i1], most[i2], most[i3]);
  const __m128 largest = _mm_castsi128_ps(bits);
  const __m128i is_finite = _mm_cmplt_epi32(bits, _mm_set1_epi32(infinity_bits));
  const __m128 is_used = _mm_cmpge_ps(largest, _mm_set1_ps(smallest_group));
  const __m128 inverse = _mm_and_ps(_mm_div_ps(_mm_set1_ps(127.0f), largest), is_used);
  const __m128 finite_scale = _mm_and_ps(_mm_div_ps(largest, _mm_set1_ps(127.0f)), is_used);
  const __m128 scale = _mm_blendv_ps(_mm_set1_ps(bits_to_float(0x7fc00000u)), finite_scale, _mm_castsi128_ps(is_finite));
  unroll<N>([&](auto i) {
    constexpr int lane = decltype(i)::value * 0x55;
    codes[i] = codes_of(x + i * block_k, _mm_permute_ps(inverse, lane), _mm_shuffle_epi32(is_finite, lane));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.codes + (group + i) * block_k), codes[i]);
  });
  const __m256i halves = half_sums_of_four(sums_of_4(codes[0]), sums_of_4(codes[i1]), sums_of_4(codes[i2]), sums_of_4(codes[i3]));
  const __m128i low = _mm256_castsi256_si128(halves), high = _mm256_extracti128_si256(halves, 1), sum = _mm_add_epi32(low, high);
  const __m256i sums16 = _mm256_set_m128i(_mm_unpackhi_epi32(low, high), _mm_unpacklo_epi32(low, high));
  const __m256 scale16 = _mm256_set_m128(_mm_unpackhi_ps(scale, scale), _mm_unpacklo_ps(scale, scale));
  struct {
    __m128 scales;
    __m128i offsets;
    __m128 scaled_sums;
    __m256i offsets16;
    __m256 scaled_sums16;
  } const result = {scale, minus_8_times(sum), _mm_mul_ps(scale, _mm_cvtepi32_ps(sum)), minus_8_times(sums16),
                    _mm256_mul_ps(scale16, _mm256_cvtepi32_ps(sums16))};
  std::memcpy(row.scales + group, &result.scales, 4 * N);
  std::memcpy(row.offsets + group, &result.offsets, 4 * N);
  std::memcpy(row.scaled_sums + group, &result.scaled_sums, 4 * N);
  std::memcpy(row.offsets16 + 2 * group, &result.offsets16, 8 * N);
  std::memcpy(row.scaled_sums16 + 2 * group, &result.scaled_sums16, 8 * N);
}

#else

template <int N>
GM_INLINE void quantize_some(const float* x, const QuantizedRow& row, int64_t group) {
  static_assert(N == 1);
  constexpr int parts = block_k / num_lanes;
  Bits most{};
  for (int i = 0; i < parts; ++i) {
    const Bits m = bits_of(magnitude(load(x + i * num_lanes)));
    most = reinterpret_cast<Ints>(most) > reinterpret_cast<Ints>(m) ? most : m;
  }
  uint32_t bits = 0;
  for (int i = 0; i < num_lanes; ++i) bits = most[i] > bits ? most[i] : bits;
  const float largest = bits_to_float(bits);
  const bool is_finite = bits < infinity_bits, is_used = is_finite && largest >= smallest_group;
  const float inverse = is_used ? 127.0f / largest : 0.0f;
  const float scale = is_used ? largest / 127.0f : is_finite ? 0.0f : bits_to_float(0x7fc00000u);
  int8_t* codes = row.codes + group * block_k;
  int32_t halves[2] = {0, 0};
  for (int i = 0; i < parts; ++i) {
    const Bits rounded = bits_of(load(x + i * num_lanes) * inverse + round_magic) - float_to_bits(round_magic);
    for (int j = 0; j < num_lanes; ++j) {
      const int32_t code = is_finite ? static_cast<int32_t>(rounded[j]) : 0;
      codes[i * num_lanes + j] = static_cast<int8_t>(code);
      halves[i / (parts / 2)] += code;
    }
  }
  row.scales[group] = scale;
  row.offsets[group] = -8 * (halves[0] + halves[1]);
  row.scaled_sums[group] = scale * static_cast<float>(halves[0] + halves[1]);
  for (int h = 0; h < 2; ++h) {
    row.offsets16[2 * group + h] = -8 * halves[h];
    row.scaled_sums16[2 * group + h] = scale * static_cast<float>(halves[h]);
  }
}

#endif

#if defined(GM_avx512) || defined(GM_avx2)
constexpr int groups_at_once = 4;
#else
constexpr int groups_at_once = 1;
#endif

// Groups [begin, end) of a row; x is the first column of group `begin`.
GM_INLINE void quantize_groups(const float* x, const QuantizedRow& row, int64_t begin, int64_t end) {
  int64_t group = begin;
  for (; group + groups_at_once <= end; group += groups_at_once)
    quantize_some<groups_at_once>(x + (group - begin) * block_k, row, group);
  for (; group < end; ++group) quantize_some<1>(x + (group - begin) * block_k, row, group);
}

}  // namespace
}  // namespace gm::GM_TIER
