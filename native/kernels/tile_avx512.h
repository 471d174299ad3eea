// Up to 6 rows x 32 channels in registers: 12 integer and 12 float accumulators, the weights of one line, one broadcast.
// Included by linear_quantized.h.
#pragma once
#include "tile.h"

namespace gm::GM_TIER {
namespace {

constexpr int rows_at_once = 6;
constexpr int64_t prefetch_ahead_bytes = 4608;

// In assembly, since the intrinsic makes g++ 12 copy accumulators once there are many.
GM_INLINE void dot(__m512i& acc, __m512i weights, __m512i activations) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(activations));
}

GM_INLINE __m512i broadcast4(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return _mm512_set1_epi32(value);
}

GM_INLINE void dot_row(__m512i (&acc)[2], __m512i w0, __m512i w1, const int8_t* x) {
  const __m512i a = broadcast4(x);
  dot(acc[0], w0, a);
  dot(acc[1], w1, a);
}

// One pair of lines against all rows: x is the first k of row 0. Rows are a parameter pack (here and below), since
// lambdas over them make g++ 12 store every accumulator to the stack as well.
template <int kBits, int... M>
GM_INLINE void step(__m512i (&acc)[sizeof...(M)][2], const uint8_t* lines, const int8_t* x, int64_t stride) {
  const __m512i v0 = _mm512_load_si512(lines), v1 = _mm512_load_si512(lines + 64);
  if constexpr (kBits == 8) {
    (dot_row(acc[M], v0, v1, x + M * stride), ...);
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i low0 = _mm512_and_si512(v0, nibble), low1 = _mm512_and_si512(v1, nibble);
    (dot_row(acc[M], low0, low1, x + M * stride), ...);
    const __m512i high0 = _mm512_and_si512(_mm512_srli_epi16(v0, 4), nibble);
    const __m512i high1 = _mm512_and_si512(_mm512_srli_epi16(v1, 4), nibble);
    (dot_row(acc[M], high0, high1, x + 4 + M * stride), ...);
  }
}

template <int kZero>
GM_INLINE void start_row(__m512i (&acc)[2], const int32_t* offset) {
  acc[0] = _mm512_setzero_si512();
  if constexpr (kZero) acc[0] = broadcast4(offset);
  if constexpr (kZero == 128) acc[0] = _mm512_slli_epi32(acc[0], 4);
  acc[1] = acc[0];
}

GM_INLINE void scale_row(__m512 (&y)[2], const __m512i (&acc)[2], __m512 s0, __m512 s1, const float* scale) {
  const __m512 a = _mm512_set1_ps(*scale);
  y[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[0]), _mm512_mul_ps(s0, a), y[0]);
  y[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[1]), _mm512_mul_ps(s1, a), y[1]);
}

GM_INLINE void add_min_row(__m512 (&y)[2], __m512 m0, __m512 m1, const float* sum) {
  const __m512 a = _mm512_set1_ps(*sum);
  y[0] = _mm512_fmadd_ps(m0, a, y[0]);
  y[1] = _mm512_fmadd_ps(m1, a, y[1]);
}

// Group g of one block.
template <class L, int kBits, int... M>
GM_INLINE void group_of(__m512 (&y)[sizeof...(M)][2], const uint8_t* block, const Rows& at, int g) {
  __m512i acc[sizeof...(M)][2];
  (start_row<L::zero>(acc[M], row_of(at.offsets + g, M, at.stride)), ...);
#pragma GCC unroll 8
  for (int j = g * L::steps; j < (g + 1) * L::steps; ++j) {
    step<kBits, M...>(acc, block + L::codes_offset + j * 128, at.codes + j * L::step_k, at.stride);
  }
  const __m512 s0 = halves(block + g * 64), s1 = halves(block + g * 64 + 32);
  (scale_row(y[M], acc[M], s0, s1, row_of(at.scales, M, at.stride)), ...);
  if constexpr (L::codes_offset > L::min_offset) {
    const __m512 m0 = halves(block + L::min_offset + g * 64), m1 = halves(block + L::min_offset + g * 64 + 32);
    (add_min_row(y[M], m0, m1, row_of(at.scaled_sums + g, M, at.stride)), ...);
  }
}

GM_INLINE void write16(__m512 value, const LinearArgs& args, float* y, int64_t channel) {
  const int64_t left = args.n - channel;
  if (left <= 0) return;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1);
  if (args.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, args.bias + channel));
  if (args.accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y + channel));
  _mm512_mask_storeu_ps(y + channel, mask, value);
}

template <class L, int kBits, int... M>
GM_INLINE void tile_of(std::integer_sequence<int, M...>, const uint8_t* tile, Rows at, const LinearArgs& args, int64_t channel,
                       Prefetch prefetch) {
  __m512 y[sizeof...(M)][2];
  ((y[M][0] = y[M][1] = _mm512_setzero_ps()), ...);
  for (int64_t blocks = args.k / block_k; blocks > 0; --blocks) {
    fetch<L::num_lines>(prefetch);
    group_of<L, kBits, M...>(y, tile, at, 0);
    if constexpr (L::num_groups == 2) group_of<L, kBits, M...>(y, tile, at, 1);
    tile += L::block_bytes;
    at.codes += block_k;
    at.scales += 1;
    at.offsets += L::num_groups;
    at.scaled_sums += L::num_groups;
  }
  (write16(y[M][0], args, at.y + M * args.ldy, channel), ...);
  (write16(y[M][1], args, at.y + M * args.ldy, channel + 16), ...);
}

template <int kBits, int kGroup, bool kMin, int MR>
void tile_rows(const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  tile_of<Layout<kBits, kGroup, kMin>, kBits>(std::make_integer_sequence<int, MR>{}, tile, rows, args, channel, prefetch);
}

}  // namespace
}  // namespace gm::GM_TIER
