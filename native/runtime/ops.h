// The ops of a plan. Every worker calls `run` of every op, in order; an op gives each worker its share.
// Which worker does what never changes a bit of the result.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/kernels.h"
#include "attention_plan.h"
#include "step.h"
#include "thread_pool.h"

namespace gm {

// A matrix of the activation arena: rows of `width` floats, or of int8 with scales (its inside is the kernels').
// With one row, an op may be run by every worker into a copy of its own, `private_stride` bytes apart (0 = never):
// that is cheaper than a barrier.
struct Buffer {
  int64_t offset;
  int64_t width;
  int64_t private_stride;
};

// Columns of a buffer from `column` on; buffer -1 = none.
struct View {
  int32_t buffer = -1;
  int32_t column = 0;
};

struct StepContext {
  const Kernels* kernels;
  ThreadPool* pool;
  uint8_t* arena;
  const Buffer* buffers;
  const StepInput* input;
  const StepResult* result;
  const AttentionPlan* attention_plans;
  float* partials;    // of split attention items
  int64_t num_rows;   // T, or the rows of this tile of logits
  int64_t first_row;  // of this tile, in logits_rows

  uint8_t* bytes(int32_t buffer, int worker) const {
    if (buffer < 0) return nullptr;
    const int64_t copy = num_rows == 1 ? buffers[buffer].private_stride * worker : 0;
    return arena + buffers[buffer].offset + copy;
  }
  float* floats(View view, int worker) const {
    if (view.buffer < 0) return nullptr;
    return reinterpret_cast<float*>(bytes(view.buffer, worker)) + view.column;
  }
  int64_t width(View view) const { return view.buffer < 0 ? 0 : buffers[view.buffer].width; }
};

struct Range {
  int64_t begin, end;
};

// Worker's share of `count` units in multiples of `unit`; the first workers get theirs first.
inline Range share(int64_t count, int worker, int num_workers, int64_t unit = 1) {
  const int64_t num_units = (count + unit - 1) / unit;
  const auto bound = [&](int64_t w) {
    const int64_t value = (num_units * w + num_workers - 1) / num_workers * unit;
    return value < count ? value : count;
  };
  return {bound(worker), bound(worker + 1)};
}

struct Op {
  virtual ~Op() = default;
  virtual void run(const StepContext& context, int worker) const = 0;
  bool has_barrier = true;         // all workers wait before this op
  bool has_barrier_single = true;  // the same, in a section of one row
  int counter = 0;                 // of the pool; unique between two barriers
};

struct EmbedOp : Op {
  Format format;
  const uint8_t* weight;
  int64_t vocab, width;
  float scale;
  View out;
  void run(const StepContext& context, int worker) const override;
};

struct NormOp : Op {
  View x;
  const float* weight;
  float eps;
  int64_t width, head_dim;
  View out;                // or none
  int32_t quantized = -1;  // or none
  void run(const StepContext& context, int worker) const override;
};

struct QuantizeOp : Op {
  View x;
  int64_t width;
  int32_t quantized;
  void run(const StepContext& context, int worker) const override;
};

struct ActMulOp : Op {
  View gate, up;
  int64_t width;
  Activation kind;
  View out;                // or none
  int32_t quantized = -1;  // or none
  void run(const StepContext& context, int worker) const override;
};

// Several matrices over the same input, as one op: their column tiles are counted through.
struct LinearOp : Op {
  struct Segment {
    Format format;
    const uint8_t* weight;
    const float* bias;  // or null
    int64_t n;
    View y;
  };
  View x;                  // for float formats
  int32_t quantized = -1;  // for quantized formats
  int64_t k;
  bool accumulate;
  std::vector<Segment> segments;
  int64_t num_tiles = 0;
  void run(const StepContext& context, int worker) const override;

 private:
  void run_tiles(const StepContext& context, int worker, Range tiles) const;
};

struct RopeTableOp : Op {
  std::vector<double> inv_freq;
  double attention_factor;
  View cos, sin;
  void run(const StepContext& context, int worker) const override;
};

struct RopeStoreOp : Op {
  View q, k, v;
  View cos, sin;  // or none
  int32_t half;
  int32_t num_heads;
  KvView kv;
  void run(const StepContext& context, int worker) const override;
};

struct AttendOp : Op {
  View q, out;
  KvView kv;
  int32_t num_heads;
  int32_t plan;  // which of the step's attention plans
  float scale;
  int32_t window;
  float softcap;
  void run(const StepContext& context, int worker) const override;
};

struct AddOp : Op {
  View x, y, out;
  int64_t width;
  void run(const StepContext& context, int worker) const override;
};

struct SoftcapOp : Op {
  View x, out;
  int64_t width;
  float cap;
  void run(const StepContext& context, int worker) const override;
};

// Rows logits_rows[first_row ..] of x, a matrix of T rows.
struct GatherOp : Op {
  View x, out;
  int64_t width;
  void run(const StepContext& context, int worker) const override;
};

struct SampleOp : Op {
  View logits;
  int64_t vocab;
  uint8_t* scratch;  // one for each worker
  int64_t scratch_stride;
  void run(const StepContext& context, int worker) const override;

 private:
  void sample_one(const StepContext& context, int worker, int64_t tile_row) const;
};

}  // namespace gm
