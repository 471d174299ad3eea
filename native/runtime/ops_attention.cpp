#include "ops.h"

namespace gm {

void RopeTableOp::run(const StepContext& context, int worker) const {
  const Range tokens = share(context.num_rows, worker, context.pool->size());
  if (tokens.begin >= tokens.end) return;
  RopeTableArgs args{};
  args.positions = context.input->positions;
  args.inv_freq = inv_freq.data();
  args.attention_factor = attention_factor;
  args.half = static_cast<int32_t>(inv_freq.size());
  args.cos = context.floats(cos, worker);
  args.sin = context.floats(sin, worker);
  args.token_begin = tokens.begin;
  args.token_end = tokens.end;
  context.kernels->rope_table(args);
}

void RopeStoreOp::run(const StepContext& context, int worker) const {
  const int64_t num_units = context.num_rows * (num_heads + kv.num_kv_heads);
  const Range units = share(num_units, worker, context.pool->size());
  if (units.begin >= units.end) return;
  RopeStoreArgs args{};
  args.q = context.floats(q, worker);
  args.k = context.floats(k, worker);
  args.v = context.floats(v, worker);
  args.ldq = context.width(q);
  args.ldk = context.width(k);
  args.ldv = context.width(v);
  args.rope = {context.floats(cos, worker), context.floats(sin, worker), half};
  args.slot_mapping = context.input->slot_mapping;
  args.kv = kv;
  args.num_heads = num_heads;
  args.unit_begin = units.begin;
  args.unit_end = units.end;
  context.kernels->rope_store(args);
}

void AttendOp::run(const StepContext& context, int worker) const {
  const AttentionPlan& work = context.attention_plans[plan];
  const StepInput& input = *context.input;
  AttentionArgs args{};
  args.q = context.floats(q, worker);
  args.ldq = context.width(q);
  args.out = context.floats(out, worker);
  args.ldo = context.width(out);
  args.query_start = input.query_start;
  args.context_len = input.context_len;
  args.block_tables = input.block_tables;
  args.block_table_stride = input.block_table_stride;
  args.kv = kv;
  args.num_heads = num_heads;
  args.scale = scale;
  args.window = window;
  args.softcap = softcap;
  args.partials = context.partials;
  const auto num_items = static_cast<int64_t>(work.items.size());
  for (int64_t i = 0; (i = context.pool->take(counter, 1)) < num_items;) context.kernels->attend(args, work.items[i]);
  if (work.num_merges == 0) return;
  context.pool->barrier();
  const Range merges = share(work.num_merges, worker, context.pool->size());
  context.kernels->merge_attention(args, work.items.data(), num_items, merges.begin, merges.end);
}

}  // namespace gm
