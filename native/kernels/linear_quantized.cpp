// y = x W^T for weights of 4 or 8 bits with a scale (and a minimum) for each group of 16 or 32 k.
//
// One definition of the numbers for every row count and thread count: over the groups in ascending k, the exact integer
// dot product times (weight scale * activation scale), added by one FMA; then minimum * (activation scale * sum of
// codes), by another. The portable tier multiplies and adds instead, since its bits are the same on every machine.
#include "quantized_rows.h"
#include "simd.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

template <int kBits, int kGroup, bool kMin>
struct Layout {
  static constexpr int num_groups = block_k / kGroup;
  static constexpr int scale_bytes = tile_channels * 2;
  static constexpr int codes_offset = num_groups * scale_bytes * (kMin ? 2 : 1);
  static constexpr int line_bytes = 64;
  static constexpr int block_bytes = codes_offset + tile_channels * block_k * kBits / 8;
  // What a code of zero stands for; codes with a minimum count from the minimum.
  static constexpr int zero = kBits == 8 ? 128 : (kMin ? 0 : 8);
};

// Rows of one register tile.
struct Rows {
  const int8_t* codes;   // [MR][k]
  const float* scales;   // [MR][k / 32]
  const int32_t* sums;   // [MR][k / kGroup]
  const float* scaled_sums;
  float* y;              // [MR][ldy]
};

#if defined(GM_avx512)
#include "linear_quantized_avx512.inc"
#elif defined(GM_avx2)
#include "linear_quantized_avx2.inc"
#else
#include "linear_quantized_portable.inc"
#endif

constexpr int rows_max = 6;

template <int kBits, int kGroup, bool kMin>
void run_rows(int count, const uint8_t* tile, const Rows& rows, const LinearArgs& args, int64_t channel, int64_t prefetch) {
  switch (count) {
    case 1: return tile_rows<kBits, kGroup, kMin, 1>(tile, rows, args, channel, prefetch);
    case 2: return tile_rows<kBits, kGroup, kMin, 2>(tile, rows, args, channel, prefetch);
    case 3: return tile_rows<kBits, kGroup, kMin, 3>(tile, rows, args, channel, prefetch);
    case 4: return tile_rows<kBits, kGroup, kMin, 4>(tile, rows, args, channel, prefetch);
    case 5: return tile_rows<kBits, kGroup, kMin, 5>(tile, rows, args, channel, prefetch);
    default: return tile_rows<kBits, kGroup, kMin, 6>(tile, rows, args, channel, prefetch);
  }
}

// Few rows: the stream itself is prefetched a few blocks ahead. Many rows: each part of the rows prefetches its share of
// the next tile, so that memory works while this tile is reused from the cache.
template <int kBits, int kGroup, bool kMin>
void linear(const LinearArgs& args) {
  using L = Layout<kBits, kGroup, kMin>;
  const QuantizedRows x = quantized_rows(args.x, args.num_rows, args.k);
  const int64_t blocks = args.k / block_k;
  const int64_t tile_bytes = blocks * L::block_bytes;
  const int64_t parts = (args.num_rows + rows_max - 1) / rows_max;
  for (int64_t t = args.tile_begin; t < args.tile_end; ++t) {
    const uint8_t* tile = args.weight + t * tile_bytes;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = args.num_rows * part / parts, end = args.num_rows * (part + 1) / parts;
      Rows rows;
      rows.codes = x.codes + begin * args.k;
      rows.scales = x.scales + begin * blocks;
      rows.sums = (kGroup == 32 ? x.sums : x.sums16) + begin * (args.k / kGroup);
      rows.scaled_sums = (kGroup == 32 ? x.scaled_sums : x.scaled_sums16) + begin * (args.k / kGroup);
      rows.y = args.y + begin * args.ldy;
      int64_t prefetch = prefetch_ahead_bytes;
      if (parts > 1) prefetch = t + 1 < args.tile_end ? tile_bytes : 0;
      if (parts > prefetch_parts_max && part % (parts / prefetch_parts_max) != 0) prefetch = 0;
      run_rows<kBits, kGroup, kMin>(static_cast<int>(end - begin), tile, rows, args, t * tile_channels, prefetch);
    }
  }
}

}  // namespace

void linear_q4_g32(const LinearArgs& args) { linear<4, 32, false>(args); }
void linear_q4_g32_min(const LinearArgs& args) { linear<4, 32, true>(args); }
void linear_q4_g16(const LinearArgs& args) { linear<4, 16, false>(args); }
void linear_q4_g16_min(const LinearArgs& args) { linear<4, 16, true>(args); }
void linear_q8_g32(const LinearArgs& args) { linear<8, 32, false>(args); }
void linear_q8_g32_min(const LinearArgs& args) { linear<8, 32, true>(args); }
void linear_q8_g16(const LinearArgs& args) { linear<8, 16, false>(args); }

}  // namespace gm::GM_TIER
