#include <algorithm>
#include <cstring>

#include "ops.h"

namespace gm {
namespace {

struct Tile {
  Range rows, columns;
};

// Rows over workers; with fewer rows than workers, several workers share a row by columns.
Tile share_tile(int64_t num_rows, int64_t width, int worker, int num_workers) {
  if (num_rows >= num_workers) return {share(num_rows, worker, num_workers), {0, width}};
  const int workers_per_row = num_workers / static_cast<int>(num_rows);
  const int64_t row = worker / workers_per_row;
  if (row >= num_rows) return {{0, 0}, {0, 0}};
  return {{row, row + 1}, share(width, worker % workers_per_row, workers_per_row, block_k)};
}

bool is_empty(Range range) { return range.begin >= range.end; }

// With one row and private buffers every worker makes its own copy; else the work is shared.
bool is_private(const StepContext& context, int32_t buffer) {
  return context.num_rows == 1 && buffer >= 0 && context.buffers[buffer].private_stride > 0;
}

}  // namespace

void EmbedOp::run(const StepContext& context, int worker) const {
  const Range rows = share(context.num_rows, worker, context.pool->size());
  if (is_empty(rows)) return;
  context.kernels->embed(
      {format, weight, vocab, width, context.input->token_ids, scale, context.floats(out, worker), rows.begin, rows.end});
}

void NormOp::run(const StepContext& context, int worker) const {
  const bool alone = is_private(context, quantized) || is_private(context, out.buffer);
  const Range rows = alone ? Range{0, 1} : share(context.num_rows, worker, context.pool->size());
  if (is_empty(rows)) return;
  NormArgs args{};
  args.x = context.floats(x, worker);
  args.ldx = context.width(x);
  args.weight = weight;
  args.eps = eps;
  args.width = width;
  args.head_dim = head_dim;
  args.out = context.floats(out, worker);
  args.ldo = context.width(out);
  args.quantized = context.bytes(quantized, worker);
  args.num_rows = context.num_rows;
  args.row_begin = rows.begin;
  args.row_end = rows.end;
  context.kernels->rms_norm(args);
}

void QuantizeOp::run(const StepContext& context, int worker) const {
  const bool alone = is_private(context, quantized);
  const Tile tile = alone ? Tile{{0, 1}, {0, width}} : share_tile(context.num_rows, width, worker, context.pool->size());
  if (is_empty(tile.rows) || is_empty(tile.columns)) return;
  QuantizeArgs args{};
  args.x = context.floats(x, worker);
  args.ldx = context.width(x);
  args.width = width;
  args.quantized = context.bytes(quantized, worker);
  args.num_rows = context.num_rows;
  args.row_begin = tile.rows.begin;
  args.row_end = tile.rows.end;
  args.column_begin = tile.columns.begin;
  args.column_end = tile.columns.end;
  context.kernels->quantize(args);
}

void ActMulOp::run(const StepContext& context, int worker) const {
  const bool alone = is_private(context, quantized) || is_private(context, out.buffer);
  const Tile tile = alone ? Tile{{0, 1}, {0, width}} : share_tile(context.num_rows, width, worker, context.pool->size());
  if (is_empty(tile.rows) || is_empty(tile.columns)) return;
  ActMulArgs args{};
  args.gate = context.floats(gate, worker);
  args.up = context.floats(up, worker);
  args.ld = context.width(gate);
  args.width = width;
  args.kind = kind;
  args.out = context.floats(out, worker);
  args.ldo = context.width(out);
  args.quantized = context.bytes(quantized, worker);
  args.num_rows = context.num_rows;
  args.row_begin = tile.rows.begin;
  args.row_end = tile.rows.end;
  args.column_begin = tile.columns.begin;
  args.column_end = tile.columns.end;
  context.kernels->act_mul(args);
}

void AddOp::run(const StepContext& context, int worker) const {
  const Tile tile = share_tile(context.num_rows, width, worker, context.pool->size());
  if (is_empty(tile.columns)) return;
  for (int64_t row = tile.rows.begin; row < tile.rows.end; ++row) {
    context.kernels->add(context.floats(x, worker) + row * context.width(x) + tile.columns.begin,
                         context.floats(y, worker) + row * context.width(y) + tile.columns.begin,
                         context.floats(out, worker) + row * context.width(out) + tile.columns.begin,
                         tile.columns.end - tile.columns.begin);
  }
}

void SoftcapOp::run(const StepContext& context, int worker) const {
  const Tile tile = share_tile(context.num_rows, width, worker, context.pool->size());
  if (is_empty(tile.columns)) return;
  for (int64_t row = tile.rows.begin; row < tile.rows.end; ++row) {
    context.kernels->softcap(context.floats(x, worker) + row * context.width(x) + tile.columns.begin, cap,
                             context.floats(out, worker) + row * context.width(out) + tile.columns.begin,
                             tile.columns.end - tile.columns.begin);
  }
}

void GatherOp::run(const StepContext& context, int worker) const {
  const Range rows = share(context.num_rows, worker, context.pool->size());
  // x has T rows: it is never private here, whatever this section's row count is.
  const float* source = reinterpret_cast<const float*>(context.arena + context.buffers[x.buffer].offset) + x.column;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t token = context.input->logits_rows[context.first_row + row];
    std::memcpy(context.floats(out, worker) + row * context.width(out), source + token * context.width(x),
                static_cast<size_t>(width) * sizeof(float));
  }
}

void SampleOp::run(const StepContext& context, int worker) const {
  for (int64_t row = 0; (row = context.pool->take(counter, 1)) < context.num_rows;) sample_one(context, worker, row);
}

void SampleOp::sample_one(const StepContext& context, int worker, int64_t tile_row) const {
  const StepResult& step = *context.result;
  const int64_t r = context.first_row + tile_row;
  const SampleRow row = sample_row(context.input->sampling, r);
  SampleResult result{};
  result.top_ids = step.top_ids + r * step.num_top;
  result.top_logprobs = step.top_logprobs + r * step.num_top;
  std::fill_n(result.top_ids, step.num_top, -1);
  std::fill_n(result.top_logprobs, step.num_top, 0.0f);
  SampleArgs args{};
  args.logits = context.floats(logits, worker) + tile_row * context.width(logits);
  args.vocab = vocab;
  args.row = &row;
  args.result = &result;
  args.scratch = scratch + worker * scratch_stride;
  context.kernels->sample(args);
  step.token_ids[r] = result.token_id;
  step.is_finite[r] = result.is_finite;
  step.logprobs[r] = result.logprob;
}

}  // namespace gm
