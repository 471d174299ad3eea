#include "plan.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace gm {

Plan::Plan(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvArena> kv, const Kernels* kernels, PlanLimits limits)
    : pool_(std::move(pool)),
      kv_(std::move(kv)),
      kernels_(kernels),
      limits_(limits),
      arena_(limits.arena_bytes),
      scratch_stride_(round_up(kernels->sample_scratch_bytes(limits.vocab_size), cache_line)),
      scratch_(scratch_stride_ * pool_->size()) {
  arena_.advise_huge(0, limits.arena_bytes);
}

int64_t attention_partial_bytes(AttentionShape shape, const PlanLimits& limits, int num_threads) {
  // plan_attention cuts single rows of fewer than 2 sequences a thread; each unit leaves max, sum and output.
  const int64_t num_sequences = std::min<int64_t>(limits.max_num_seqs, 2 * num_threads - 1);
  int64_t positions = limits.max_model_len;
  if (shape.window > 0) positions = std::min<int64_t>(positions, shape.window + unit_tokens);
  const int64_t num_units = (positions + unit_tokens - 1) / unit_tokens + 1;
  return num_sequences * num_units * shape.num_heads * (shape.head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

int32_t Plan::add_buffer(Buffer buffer) {
  buffers_.push_back(buffer);
  return static_cast<int32_t>(buffers_.size()) - 1;
}

void Plan::add(std::unique_ptr<Op> op) {
  is_in_head_ = is_in_head_ || dynamic_cast<GatherOp*>(op.get()) != nullptr;
  Section& section = is_in_head_ ? head_ : body_;
  // Counters are set to 0 by barriers; ops without one between them need different counters.
  if ((op->has_barrier && op->has_barrier_single) || section.ops.empty()) section.next_counter = 0;
  if (section.next_counter == num_counters) {
    op->has_barrier = op->has_barrier_single = true;
    section.next_counter = 0;
  }
  op->counter = section.next_counter++;
  if (auto* sample = dynamic_cast<SampleOp*>(op.get())) {
    sample->scratch = scratch_.data();
    sample->scratch_stride = scratch_stride_;
  }
  section.ops.push_back(std::move(op));
}

int32_t Plan::attention_plan(AttentionShape shape) {
  const auto found = std::find(attention_shapes_.begin(), attention_shapes_.end(), shape);
  if (found != attention_shapes_.end()) return static_cast<int32_t>(found - attention_shapes_.begin());
  const int64_t bytes = attention_partial_bytes(shape, limits_, pool_->size());
  if (!partials_ || partials_->bytes() < bytes) partials_ = std::make_unique<Mapping>(bytes);
  attention_shapes_.push_back(shape);
  attention_plans_.emplace_back();
  return static_cast<int32_t>(attention_shapes_.size()) - 1;
}

void Plan::prepare(const StepInput& input) {
  for (size_t i = 0; i < attention_shapes_.size(); ++i) {
    const AttentionShape& shape = attention_shapes_[i];
    plan_attention({input.query_start, input.context_len, input.num_sequences, shape.num_heads, shape.num_kv_heads,
                    shape.head_dim, shape.window, pool_->size()},
                   attention_plans_[i]);
    const int64_t bytes = attention_plans_[i].partial_floats * static_cast<int64_t>(sizeof(float));
    if (bytes > partials_->bytes()) throw std::logic_error("attention needs more scratch than it was given");
  }
}

void Plan::step(const StepInput& input, StepResult& result) {
  check_step(input, {limits_.max_step_tokens, limits_.max_num_seqs, limits_.max_model_len, limits_.vocab_size,
                     kv_->num_committed_blocks()});
  const auto start = std::chrono::steady_clock::now();
  prepare(input);
  struct Run {
    const Plan* plan;
    StepContext context;
  } run{this, {}};
  run.context.kernels = kernels_;
  run.context.pool = pool_.get();
  run.context.arena = arena_.data();
  run.context.buffers = buffers_.data();
  run.context.input = &input;
  run.context.result = &result;
  run.context.attention_plans = attention_plans_.data();
  run.context.partials = partials_ ? reinterpret_cast<float*>(partials_->data()) : nullptr;
  pool_->run(
      [](void* data, int worker) {
        const Run& r = *static_cast<const Run*>(data);
        r.plan->run_worker(r.context, worker);
      },
      &run);
  result.device_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

void Plan::run_worker(const StepContext& shared, int worker) const {
  StepContext context = shared;
  context.num_rows = context.input->num_tokens;
  run_section(body_, context, worker);
  for (int64_t first = 0; first < context.input->num_logits_rows; first += limits_.tile_rows) {
    context.first_row = first;
    context.num_rows = std::min(limits_.tile_rows, context.input->num_logits_rows - first);
    run_section(head_, context, worker);
  }
}

void Plan::run_section(const Section& section, const StepContext& context, int worker) {
  const bool is_single = context.num_rows == 1;
  for (const std::unique_ptr<Op>& op : section.ops) {
    if (is_single ? op->has_barrier_single : op->has_barrier) context.pool->barrier();
    op->run(context, worker);
  }
}

}  // namespace gm
