// A model as the machine runs it: a flat list of ops over an activation arena, one call for each step.
#pragma once
#include <memory>
#include <vector>

#include "kv_arena.h"
#include "memory.h"
#include "ops.h"
#include "step.h"
#include "thread_pool.h"

namespace gm {

struct PlanLimits {
  int64_t max_step_tokens;
  int64_t max_num_seqs;
  int64_t max_model_len;
  int64_t vocab_size;
  int64_t tile_rows;    // rows of logits computed at once
  int64_t arena_bytes;  // of activations
};

// Layers whose attention is planned alike.
struct AttentionShape {
  int32_t num_heads, num_kv_heads, head_dim, window;
  bool operator==(const AttentionShape&) const = default;
};

// Scratch that the attention of one shape needs at most.
int64_t attention_partial_bytes(AttentionShape shape, const PlanLimits& limits, int num_threads);

class Plan {
 public:
  Plan(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvArena> kv, const Kernels* kernels, PlanLimits limits);

  int32_t add_buffer(Buffer buffer);
  // Ops before the first GatherOp run once, over T rows; it and those after it once for each tile of logits rows.
  void add(std::unique_ptr<Op> op);
  // Which attention plan serves layers of this shape.
  int32_t attention_plan(AttentionShape shape);
  KvView layer(int32_t layer) const { return kv_->layer(layer); }

  // Runs one step. Throws std::invalid_argument for a batch that would lead outside of memory. One step at a time.
  void step(const StepInput& input, StepResult& result);

 private:
  struct Section {
    std::vector<std::unique_ptr<Op>> ops;
    int next_counter = 0;
  };
  void prepare(const StepInput& input);
  void run_worker(const StepContext& context, int worker) const;
  static void run_section(const Section& section, const StepContext& context, int worker);

  const std::shared_ptr<ThreadPool> pool_;
  const std::shared_ptr<KvArena> kv_;
  const Kernels* const kernels_;
  const PlanLimits limits_;
  Mapping arena_;
  const int64_t scratch_stride_;
  Mapping scratch_;  // sampling, one for each worker
  std::vector<Buffer> buffers_;
  Section body_, head_;
  bool is_in_head_ = false;
  std::vector<AttentionShape> attention_shapes_;
  std::vector<AttentionPlan> attention_plans_;
  std::unique_ptr<Mapping> partials_;  // of the largest shape; layers use it one after the other
};

}  // namespace gm
