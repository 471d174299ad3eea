#include "attention_plan.h"

#include <algorithm>

namespace gm {
namespace {

constexpr int64_t tile_queries = 48;     // query rows x heads of a group in one prefill item
constexpr int64_t items_per_thread = 6;  // enough that nobody waits long for the last one

int32_t num_units(int64_t context_len) { return static_cast<int32_t>((context_len + unit_tokens - 1) / unit_tokens); }

// First unit that the row at `position` sees.
int32_t first_unit(int64_t position, int32_t window) {
  return window > 0 && position >= window ? static_cast<int32_t>((position - window + 1) / unit_tokens) : 0;
}

struct Sequence {
  int64_t row_begin, row_end, first_position, context_len;
};

Sequence sequence(const AttentionStep& step, int64_t s) {
  const int64_t begin = step.query_start[s], end = step.query_start[s + 1];
  return {begin, end, step.context_len[s] - (end - begin), step.context_len[s]};
}

// One row over many positions: cut along the positions.
void split(const AttentionStep& step, int64_t s, AttentionPlan& plan) {
  const Sequence q = sequence(step, s);
  const int32_t begin = first_unit(q.context_len - 1, step.window), end = num_units(q.context_len);
  const int64_t pieces = std::max<int64_t>(2, step.num_threads * items_per_thread / step.num_kv_heads);
  const auto chunk = static_cast<int32_t>(std::max<int64_t>(1, (end - begin) / pieces));
  const int64_t unit_floats = step.num_heads / step.num_kv_heads * (step.head_dim + 2);
  for (int32_t head = 0; head < step.num_kv_heads; ++head) {
    for (int32_t unit = begin; unit < end; unit += chunk) {
      const int32_t last = std::min(unit + chunk, end);
      plan.items.push_back({static_cast<int32_t>(s), static_cast<int32_t>(q.row_begin), static_cast<int32_t>(q.row_end), head,
                            head + 1, unit, last, plan.partial_floats});
      plan.partial_floats += (last - unit) * unit_floats;
    }
    ++plan.num_merges;
  }
}

void whole(const AttentionStep& step, int64_t s, bool by_head, AttentionPlan& plan) {
  const Sequence q = sequence(step, s);
  const int64_t group = step.num_heads / step.num_kv_heads;
  const int64_t rows = q.row_end - q.row_begin == 1 ? 1 : std::max<int64_t>(1, tile_queries / group);
  for (int64_t row = q.row_begin; row < q.row_end; row += rows) {
    const int64_t end = std::min(row + rows, q.row_end);
    const int64_t position = q.first_position + row - q.row_begin;
    AttentionItem item{static_cast<int32_t>(s), static_cast<int32_t>(row),         static_cast<int32_t>(end),       0,
                       step.num_kv_heads,       first_unit(position, step.window), num_units(position + end - row), -1};
    if (!by_head) {
      plan.items.push_back(item);
      continue;
    }
    for (int32_t head = 0; head < step.num_kv_heads; ++head) {
      item.head_begin = head;
      item.head_end = head + 1;
      plan.items.push_back(item);
    }
  }
}

int64_t cost(const AttentionItem& item) {
  return int64_t{item.row_end - item.row_begin} * (item.head_end - item.head_begin) * (item.unit_end - item.unit_begin);
}

}  // namespace

void plan_attention(const AttentionStep& step, AttentionPlan& plan) {
  plan.items.clear();
  plan.num_merges = 0;
  plan.partial_floats = 0;
  const bool is_few = step.num_sequences < 2 * step.num_threads && step.num_threads > 1;
  const auto is_split = [&](const Sequence& q) {
    return is_few && q.row_end - q.row_begin == 1 && num_units(q.context_len) - first_unit(q.context_len - 1, step.window) > 1;
  };
  for (int64_t s = 0; s < step.num_sequences; ++s) {
    if (is_split(sequence(step, s))) split(step, s, plan);
  }
  const auto num_split = static_cast<int64_t>(plan.items.size());
  for (int64_t s = 0; s < step.num_sequences; ++s) {
    const Sequence q = sequence(step, s);
    if (q.row_end > q.row_begin && !is_split(q)) whole(step, s, is_few || q.row_end - q.row_begin > 1, plan);
  }
  // Longest first, so that the end of the op is even.
  std::stable_sort(plan.items.begin() + num_split, plan.items.end(),
                   [](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

}  // namespace gm
