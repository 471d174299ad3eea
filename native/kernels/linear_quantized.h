// y = x W^T for weights of 4 or 8 bits with a scale (and a minimum) for each group of 16 or 32 k.
//
// One definition of the numbers for every row count and thread count: over the groups in ascending k, the exact integer
// dot product times (weight scale * activation scale), added by one FMA; then minimum * (activation scale * sum of
// codes), by another. The portable tier multiplies and adds instead, since its bits are the same on every machine.
#pragma once
#include "quantized_rows.h"
#include "tile.h"

namespace gm::GM_TIER {
namespace {

template <int kBits, int kGroup, bool kMin>
struct Layout {
  static constexpr int num_groups = block_k / kGroup;
  static constexpr int scale_bytes = tile_channels * 2;
  static constexpr int codes_offset = num_groups * scale_bytes * (kMin ? 2 : 1);
  static constexpr int block_bytes = codes_offset + tile_channels * block_k * kBits / 8;
  static constexpr int num_lines = block_bytes / 64;
  // Byte distance from a group's scales to its minimums.
  static constexpr int min_offset = num_groups * scale_bytes;
  // Dot products of `step_k` k come out of one pair of lines.
  static constexpr int step_k = kBits == 4 ? 8 : 4;
  static constexpr int steps = kGroup / step_k;
  // What a code of zero stands for; 4-bit codes with a minimum count from the minimum.
  static constexpr int zero = kBits == 8 ? 128 : (kMin ? 0 : 8);
};

// The first of the rows of one register tile; the others follow `stride` bytes apart.
struct Rows {
  const int8_t* codes;       // [k]
  const float* scales;       // [k / 32]
  const int32_t* offsets;    // [k / group], -8 * sum of codes
  const float* scaled_sums;  // [k / group]
  int64_t stride;
  float* y;  // rows ldy apart
};

}  // namespace
}  // namespace gm::GM_TIER

#if defined(GM_avx512)
#include "tile_avx512.h"
#elif defined(GM_avx2)
#include "tile_avx2.h"
#else
#include "tile_portable.h"
#endif

namespace gm::GM_TIER {
namespace {

template <int kBits, int kGroup, bool kMin, int MR = rows_at_once>
void run_rows(int count, const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, Prefetch prefetch) {
  if constexpr (MR > 1) {
    if (count < MR) return run_rows<kBits, kGroup, kMin, MR - 1>(count, tile, rows, args, channel, prefetch);
  }
  tile_rows<kBits, kGroup, kMin, MR>(tile, rows, args, channel, prefetch);
}

template <int kGroup>
Rows rows_from(const LinearArgs& args, int64_t row) {
  const QuantizedRow x = quantized_row(args.x, row, args.k);
  float* y = args.y + row * args.ldy;
  const int64_t stride = quantized_row_bytes(args.k);
  if constexpr (kGroup == 32) return {x.codes, x.scales, x.offsets, x.scaled_sums, stride, y};
  return {x.codes, x.scales, x.offsets16, x.scaled_sums16, stride, y};
}

// The first time through a tile its own stream is fetched a few blocks ahead. After that each part of the rows fetches
// its share of the next tile, so that memory works while this tile is used again from the cache.
template <int kBits, int kGroup, bool kMin>
void linear(const LinearArgs& args) {
  using L = Layout<kBits, kGroup, kMin>;
  const int64_t blocks = args.k / block_k, tile_bytes = blocks * L::block_bytes;
  const int64_t parts = (args.num_rows + rows_at_once - 1) / rows_at_once;
  const int64_t share = (blocks * L::num_lines + parts - 1) / parts;
  for (int64_t t = args.tile_begin; t < args.tile_end; ++t) {
    const uint8_t* tile = args.weight + t * tile_bytes;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = args.num_rows * part / parts, end = args.num_rows * (part + 1) / parts;
      Prefetch prefetch{tile + prefetch_ahead_bytes, L::num_lines};
      if (parts > 1 && (part > 0 || t > args.tile_begin)) {
        prefetch = {tile + tile_bytes + part * share * 64, t + 1 < args.tile_end ? (share + blocks - 1) / blocks : 0};
      }
      run_rows<kBits, kGroup, kMin>(static_cast<int>(end - begin), tile, rows_from<kGroup>(args, begin), args, t * tile_channels,
                                    prefetch);
    }
  }
}

}  // namespace
}  // namespace gm::GM_TIER
