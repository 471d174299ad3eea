// 32 channels as four registers of 8 channels x 4 k. 4-bit codes: the eight products of a group in one 16-bit lane pair
// add up to 8 x 2 x 15 x 127 = 30,480 at most, so nothing saturates. 8-bit codes: the sign trick, |w| x (a with w's sign),
// whose pairs reach 2 x 128 x 127 = 32,512. Included by linear_quantized.h.
#pragma once
#include "tile.h"

namespace gm::GM_TIER {
namespace {

constexpr int rows_at_once = 4;
constexpr int64_t prefetch_ahead_bytes = 4608;

GM_INLINE __m256i broadcast4(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}

// 16-bit sums for 4-bit codes, 32-bit ones for 8-bit codes; two registers of channels share what is broadcast.
GM_INLINE void step_row4(__m256i (&acc)[2], const __m256i (&low)[2], const __m256i (&high)[2], const int8_t* x) {
  const __m256i a = broadcast4(x), b = broadcast4(x + 4);
  acc[0] = _mm256_add_epi16(acc[0], _mm256_add_epi16(_mm256_maddubs_epi16(low[0], a), _mm256_maddubs_epi16(high[0], b)));
  acc[1] = _mm256_add_epi16(acc[1], _mm256_add_epi16(_mm256_maddubs_epi16(low[1], a), _mm256_maddubs_epi16(high[1], b)));
}

GM_INLINE void step_row8(__m256i (&acc)[2], const __m256i (&w)[2], const __m256i (&size)[2], const int8_t* x) {
  const __m256i a = broadcast4(x), ones = _mm256_set1_epi16(1);
  acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(_mm256_maddubs_epi16(size[0], _mm256_sign_epi8(a, w[0])), ones));
  acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(_mm256_maddubs_epi16(size[1], _mm256_sign_epi8(a, w[1])), ones));
}

// `lines` are 16 channels, x the first k of row 0. Rows are a parameter pack: lambdas over them make g++ 12 spill.
template <int kBits, int... M>
GM_INLINE void step(__m256i (&acc)[sizeof...(M)][2], const uint8_t* lines, const int8_t* x, int64_t stride) {
  const auto* v = reinterpret_cast<const __m256i*>(lines);
  if constexpr (kBits == 4) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i low[2] = {_mm256_and_si256(v[0], nibble), _mm256_and_si256(v[1], nibble)};
    const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(v[0], 4), nibble),
                             _mm256_and_si256(_mm256_srli_epi16(v[1], 4), nibble)};
    (step_row4(acc[M], low, high, x + M * stride), ...);
  } else {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i w[2] = {_mm256_xor_si256(v[0], flip), _mm256_xor_si256(v[1], flip)};
    const __m256i size[2] = {_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])};
    (step_row8(acc[M], w, size, x + M * stride), ...);
  }
}

// Adds the dot products of one row and 8 channels to y: channel c is their first.
template <class L, int kBits>
GM_INLINE void add_dots(float* y, __m256i sum, const uint8_t* block, int g, int c, const Rows& at, int64_t m) {
  if constexpr (kBits == 4) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  if constexpr (L::zero == 8) sum = _mm256_add_epi32(sum, broadcast4(row_of(at.offsets + g, m, at.stride)));
  const __m256 scale = _mm256_mul_ps(halves(block + g * 64 + 2 * c), _mm256_set1_ps(*row_of(at.scales, m, at.stride)));
  __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_load_ps(y + c));
  if constexpr (L::codes_offset > L::min_offset) {
    const __m256 sums = _mm256_set1_ps(*row_of(at.scaled_sums + g, m, at.stride));
    value = _mm256_fmadd_ps(halves(block + L::min_offset + g * 64 + 2 * c), sums, value);
  }
  _mm256_store_ps(y + c, value);
}

// Group g of one block for one half of the channels; y stays in the first cache.
template <class L, int kBits, int... M>
GM_INLINE void group_of(float (&y)[sizeof...(M)][tile_channels], const uint8_t* block, const Rows& at, int g, int half) {
  // What was broadcast for the other half must not be kept: it would only be spilled.
  asm volatile("" ::: "memory");
  __m256i acc[sizeof...(M)][2];
  ((acc[M][0] = acc[M][1] = _mm256_setzero_si256()), ...);
  const uint8_t* lines = block + L::codes_offset + half * 64;
#pragma GCC unroll 1
  for (int j = g * L::steps; j < (g + 1) * L::steps; ++j) {
    step<kBits, M...>(acc, lines + j * 128, at.codes + j * L::step_k, at.stride);
  }
  (add_dots<L, kBits>(y[M], acc[M][0], block, g, half * 16, at, M), ...);
  (add_dots<L, kBits>(y[M], acc[M][1], block, g, half * 16 + 8, at, M), ...);
}

template <class L, int kBits, int... M>
GM_INLINE void tile_of(std::integer_sequence<int, M...>, const uint8_t* tile, Rows at, const LinearArgs& args, int64_t channel,
                       Prefetch prefetch) {
  alignas(32) float y[sizeof...(M)][tile_channels] = {};
  for (int64_t blocks = args.k / block_k; blocks > 0; --blocks) {
    fetch<L::num_lines>(prefetch);
    for (int g = 0; g < L::num_groups; ++g) {
      group_of<L, kBits, M...>(y, tile, at, g, 0);
      group_of<L, kBits, M...>(y, tile, at, g, 1);
    }
    tile += L::block_bytes;
    at.codes += block_k;
    at.scales += 1;
    at.offsets += L::num_groups;
    at.scaled_sums += L::num_groups;
  }
  (finish_row(y[M], args, at.y + M * args.ldy, channel), ...);
}

template <int kBits, int kGroup, bool kMin, int MR>
void tile_rows(const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  tile_of<Layout<kBits, kGroup, kMin>, kBits>(std::make_integer_sequence<int, MR>{}, tile, rows, args, channel, prefetch);
}

}  // namespace
}  // namespace gm::GM_TIER
