#include "plan.h"

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

void Plan::step(const StepInput& input, StepResult& result) {
  check_step(input, {limits_.max_step_tokens, limits_.max_num_seqs, limits_.max_model_len, limits_.vocab_size,
                     kv_->num_committed_blocks()});
  const auto start = std::chrono::steady_clock::now();
  prepare(input);
  struct Run {
    const Plan* plan;
    StepContext context;
  } run{this, {kernels_, pool_.get(), arena_.data(), buffers_.data(), &input, &result, attention_plans_.data(), 0, 0}};
  pool_->run([](void* data, int worker) {
    const Run& r = *static_cast<const Run*>(data);
    r.plan->run_worker(r.context, worker);
  }, &run);
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
