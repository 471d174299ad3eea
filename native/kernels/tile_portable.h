// Vectors of 16 bytes in plain C++, which SSE2 and NEON both have: 4 channels x 4 k, as 16-bit lanes of 2 k.
// Sums of 4-bit products fit 16 bits (16 x 15 x 127 = 30,480); of 8-bit products two do (2 x 128 x 127 = 32,512).
// Included by linear_quantized.h.
#pragma once
#include "tile.h"

namespace gm::GM_TIER {
namespace {

constexpr int rows_at_once = 4;
constexpr int64_t prefetch_ahead_bytes = 4608;

typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Codes __attribute__((vector_size(16)));

// Four activations, repeated: those of even k and those of odd k, in the order in which Codes has them.
struct Activations {
  Shorts even, odd;
};

GM_INLINE Activations activations_of(const int8_t* x) {
  int32_t value;
  std::memcpy(&value, x, 4);
  const Shorts four = reinterpret_cast<Shorts>(Ints{} + value);
  return {reinterpret_cast<Shorts>(reinterpret_cast<Codes>(four) << 8) >> 8, four >> 8};
}

GM_INLINE Ints sum_of_pairs(Shorts pairs) {
  const Ints both = reinterpret_cast<Ints>(pairs);
  return (reinterpret_cast<Ints>(reinterpret_cast<Bits>(both) << 16) >> 16) + (both >> 16);
}

// Exact dot products of group g for channels 4v .. 4v + 3, all rows.
template <class L, int kBits, int MR>
GM_INLINE void dots(const uint8_t* lines, const Activations (&x)[MR][8], int g, Ints (&acc)[MR]) {
  Shorts narrow[MR] = {};
  for (int m = 0; m < MR; ++m) acc[m] = Ints{};
  for (int j = 0; j < L::steps; ++j) {
    Codes w;
    std::memcpy(&w, lines + j * 128, 16);
    if constexpr (kBits == 4) {
      const Shorts a = reinterpret_cast<Shorts>(w & 15), b = reinterpret_cast<Shorts>(w >> 8 & 15);
      const Shorts c = reinterpret_cast<Shorts>(w >> 4 & 15), d = reinterpret_cast<Shorts>(w >> 12);
      for (int m = 0; m < MR; ++m) {
        const Activations *first = &x[m][2 * (g * L::steps + j)], *second = first + 1;
        narrow[m] += a * first->even + b * first->odd + c * second->even + d * second->odd;
      }
    } else {
      const Shorts a = reinterpret_cast<Shorts>(w & 255) - 128, b = reinterpret_cast<Shorts>(w >> 8) - 128;
      for (int m = 0; m < MR; ++m) {
        const Activations& four = x[m][g * L::steps + j];
        acc[m] += sum_of_pairs(a * four.even + b * four.odd);
      }
    }
  }
  if constexpr (kBits == 4) {
    for (int m = 0; m < MR; ++m) acc[m] = sum_of_pairs(narrow[m]);
  }
}

template <class L, int kBits, int MR>
GM_INLINE void block_rows(const uint8_t* block, const Rows& at, float (&y)[MR][tile_channels]) {
  Activations x[MR][8];
  for (int m = 0; m < MR; ++m) {
    for (int i = 0; i < 8; ++i) x[m][i] = activations_of(at.codes + m * at.stride + 4 * i);
  }
  for (int g = 0; g < L::num_groups; ++g) {
    for (int v = 0; v < tile_channels / 4; ++v) {
      Ints acc[MR];
      dots<L, kBits>(block + L::codes_offset + g * L::steps * 128 + v * 16, x, g, acc);
      const Floats scale = halves(block + g * 64 + v * 8);
      for (int m = 0; m < MR; ++m) {
        if constexpr (L::zero == 8) acc[m] += *row_of(at.offsets + g, m, at.stride);
        Floats value = load(y[m] + 4 * v);
        value += __builtin_convertvector(acc[m], Floats) * (scale * *row_of(at.scales, m, at.stride));
        if constexpr (L::codes_offset > L::min_offset) {
          value += halves(block + L::min_offset + g * 64 + v * 8) * *row_of(at.scaled_sums + g, m, at.stride);
        }
        store(y[m] + 4 * v, value);
      }
    }
  }
}

template <int kBits, int kGroup, bool kMin, int MR>
void tile_rows(const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  using L = Layout<kBits, kGroup, kMin>;
  float y[MR][tile_channels] = {};
  Rows at = rows;
  for (int64_t b = 0; b < args.k / block_k; ++b) {
    fetch<L::num_lines>(prefetch);
    block_rows<L, kBits>(tile, at, y);
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
