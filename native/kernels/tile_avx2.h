// 32 channels as four registers of 8 channels x 4 k. 4-bit codes: the eight products of a group in one 16-bit lane pair
// add up to 8 x 2 x 15 x 127 = 30,480 at most, so nothing saturates. 8-bit codes: the sign trick, |w| x (a with w's sign),
// whose pairs reach 2 x 128 x 127 = 32,512. Included by linear_quantized.h.
#pragma once
#include "lanes.h"

namespace gm::GM_TIER {
namespace {

constexpr int rows_at_once = 4;
constexpr int64_t prefetch_ahead_bytes = 4608;

GM_INLINE __m256i broadcast4(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}

// 16-bit sums for 4-bit codes, 32-bit ones for 8-bit codes. `lines` are 8 channels of one line, x the first k of row 0.
template <int kBits, int MR>
GM_INLINE void step(__m256i (&acc)[MR], const uint8_t* lines, const int8_t* x, int64_t stride) {
  const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(lines));
  if constexpr (kBits == 4) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(v, nibble), high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
    unroll<MR>([&](auto m) {
      const __m256i first = _mm256_maddubs_epi16(low, broadcast4(x + m * stride));
      const __m256i second = _mm256_maddubs_epi16(high, broadcast4(x + 4 + m * stride));
      acc[m] = _mm256_add_epi16(acc[m], _mm256_add_epi16(first, second));
    });
  } else {
    const __m256i w = _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(0x80))), size = _mm256_abs_epi8(w);
    unroll<MR>([&](auto m) {
      const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(broadcast4(x + m * stride), w));
      acc[m] = _mm256_add_epi32(acc[m], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    });
  }
}

// Group g of one block for channels 8q .. 8q + 7; the results stay in the first cache.
template <class L, int kBits, int MR>
GM_INLINE void group_of(const uint8_t* block, const Rows& at, int g, int q, float (&y)[MR][tile_channels]) {
  __m256i acc[MR];
  unroll<MR>([&](auto m) { acc[m] = _mm256_setzero_si256(); });
  const uint8_t* lines = block + L::codes_offset + g * L::steps * 128 + q * 32;
  const int8_t* x = at.codes + g * L::steps * L::step_k;
  unroll<L::steps>([&](auto j) { step<kBits>(acc, lines + j * 128, x + j * L::step_k, at.stride); });
  const __m256 scale = halves(block + g * 64 + q * 16);
  unroll<MR>([&](auto m) {
    __m256i sum = acc[m];
    if constexpr (kBits == 4) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    if constexpr (L::zero == 8) sum = _mm256_add_epi32(sum, broadcast4(row_of(at.offsets + g, m, at.stride)));
    const __m256 a = _mm256_set1_ps(*row_of(at.scales, m, at.stride));
    __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, a), _mm256_load_ps(y[m] + 8 * q));
    if constexpr (L::codes_offset > L::min_offset) {
      const __m256 sums = _mm256_set1_ps(*row_of(at.scaled_sums + g, m, at.stride));
      value = _mm256_fmadd_ps(halves(block + L::min_offset + g * 64 + q * 16), sums, value);
    }
    _mm256_store_ps(y[m] + 8 * q, value);
  });
}

template <int kBits, int kGroup, bool kMin, int MR>
void tile_rows(const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  using L = Layout<kBits, kGroup, kMin>;
  alignas(32) float y[MR][tile_channels] = {};
  Rows at = rows;
  for (int64_t b = 0; b < args.k / block_k; ++b) {
    fetch<L::num_lines>(prefetch);
    for (int g = 0; g < L::num_groups; ++g) {
      for (int q = 0; q < 4; ++q) group_of<L, kBits>(tile, at, g, q, y);
    }
    tile += L::block_bytes;
    at.codes += block_k;
    at.scales += 1;
    at.offsets += L::num_groups;
    at.scaled_sums += L::num_groups;
  }
  for (int m = 0; m < MR; ++m) finish_row(y[m], args, rows.y + m * args.ldy, channel);
}

}  // namespace
}  // namespace gm::GM_TIER
