#include <algorithm>

#include "ops.h"

namespace gm {
namespace {

// Below this many multiplications the shares are fixed: one atomic less, and a steady stream for each worker.
// Above, workers take chunks, so that one that was interrupted holds nobody up.
constexpr int64_t dynamic_multiplications_min = int64_t{8} << 20;
constexpr int64_t chunks_per_worker = 8;

}  // namespace

void LinearOp::run(const StepContext& context, int worker) const {
  const int num_workers = context.pool->size();
  const int64_t multiplications = context.num_rows * num_tiles * tile_channels * k;
  if (num_workers == 1 || multiplications < dynamic_multiplications_min) {
    run_tiles(context, worker, share(num_tiles, worker, num_workers));
    return;
  }
  const int64_t chunk = std::max<int64_t>(1, num_tiles / (num_workers * chunks_per_worker));
  for (int64_t begin; (begin = context.pool->take(counter, chunk)) < num_tiles;) {
    run_tiles(context, worker, {begin, std::min(begin + chunk, num_tiles)});
  }
}

void LinearOp::run_tiles(const StepContext& context, int worker, Range tiles) const {
  int64_t first_tile = 0;
  for (const Segment& segment : segments) {
    const int64_t segment_tiles = (segment.n + tile_channels - 1) / tile_channels;
    const int64_t begin = std::max<int64_t>(tiles.begin - first_tile, 0);
    const int64_t end = std::min(tiles.end - first_tile, segment_tiles);
    first_tile += segment_tiles;
    if (begin >= end) continue;
    LinearArgs args{};
    args.weight = segment.weight;
    args.n = segment.n;
    args.k = k;
    args.x = is_quantized(segment.format) ? static_cast<const void*>(context.bytes(quantized, worker))
                                          : static_cast<const void*>(context.floats(x, worker));
    args.ldx = context.width(x);
    args.num_rows = context.num_rows;
    args.y = context.floats(segment.y, worker);
    args.ldy = context.width(segment.y);
    args.bias = segment.bias;
    args.accumulate = accumulate;
    args.tile_begin = begin;
    args.tile_end = end;
    context.kernels->linear[static_cast<int>(segment.format)](args);
  }
}

}  // namespace gm
