// Up to 6 rows x 32 channels in registers: 12 integer and 12 float accumulators, the weights of one line, one broadcast.
// Included by linear_quantized.h.
#pragma once
#include "lanes.h"

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

// One pair of lines against all rows: x is the first k of row 0.
template <int kBits, int MR>
GM_INLINE void step(__m512i (&acc)[MR][2], const uint8_t* lines, const int8_t* x, int64_t stride) {
  const __m512i v0 = _mm512_load_si512(lines), v1 = _mm512_load_si512(lines + 64);
  if constexpr (kBits == 8) {
    unroll<MR>([&](auto m) {
      const __m512i a = broadcast4(x + m * stride);
      dot(acc[m][0], v0, a);
      dot(acc[m][1], v1, a);
    });
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i low0 = _mm512_and_si512(v0, nibble), low1 = _mm512_and_si512(v1, nibble);
    unroll<MR>([&](auto m) {
      const __m512i a = broadcast4(x + m * stride);
      dot(acc[m][0], low0, a);
      dot(acc[m][1], low1, a);
    });
    const __m512i high0 = _mm512_and_si512(_mm512_srli_epi16(v0, 4), nibble);
    const __m512i high1 = _mm512_and_si512(_mm512_srli_epi16(v1, 4), nibble);
    unroll<MR>([&](auto m) {
      const __m512i a = broadcast4(x + 4 + m * stride);
      dot(acc[m][0], high0, a);
      dot(acc[m][1], high1, a);
    });
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

template <int kBits, int kGroup, bool kMin, int MR>
void tile_rows(const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  using L = Layout<kBits, kGroup, kMin>;
  const int64_t blocks = args.k / block_k, stride = rows.stride;
  const int8_t* x = rows.codes;
  const float* scales = rows.scales;
  const int32_t* offsets = rows.offsets;
  const float* sums = rows.scaled_sums;
  __m512 y[MR][2];
  unroll<MR>([&](auto m) { y[m][0] = y[m][1] = _mm512_setzero_ps(); });
  for (int64_t b = 0; b < blocks; ++b) {
    fetch<L::num_lines>(prefetch);
    unroll<L::num_groups>([&](auto g) {
      __m512i acc[MR][2];
      unroll<MR>([&](auto m) {
        __m512i start = _mm512_setzero_si512();
        if constexpr (L::zero) start = broadcast4(row_of(offsets + g, m, stride));
        if constexpr (L::zero == 128) start = _mm512_slli_epi32(start, 4);
        acc[m][0] = acc[m][1] = start;
      });
      unroll<L::steps>([&](auto j) {
        step<kBits>(acc, tile + L::codes_offset + (g * L::steps + j) * 128, x + (g * L::steps + j) * L::step_k, stride);
      });
      const __m512 s0 = halves(tile + g * 64), s1 = halves(tile + g * 64 + 32);
      unroll<MR>([&](auto m) {
        const __m512 a = _mm512_set1_ps(*row_of(scales, m, stride));
        y[m][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][0]), _mm512_mul_ps(s0, a), y[m][0]);
        y[m][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][1]), _mm512_mul_ps(s1, a), y[m][1]);
      });
      if constexpr (kMin) {
        const __m512 m0 = halves(tile + L::min_offset + g * 64), m1 = halves(tile + L::min_offset + g * 64 + 32);
        unroll<MR>([&](auto m) {
          const __m512 a = _mm512_set1_ps(*row_of(sums + g, m, stride));
          y[m][0] = _mm512_fmadd_ps(m0, a, y[m][0]);
          y[m][1] = _mm512_fmadd_ps(m1, a, y[m][1]);
        });
      }
    });
    tile += L::block_bytes;
    x += block_k;
    scales += 1;
    offsets += L::num_groups;
    sums += L::num_groups;
  }
  unroll<MR>([&](auto m) {
    write16(y[m][0], args, rows.y + m * args.ldy, channel);
    write16(y[m][1], args, rows.y + m * args.ldy, channel + 16);
  });
}

}  // namespace
}  // namespace gm::GM_TIER
