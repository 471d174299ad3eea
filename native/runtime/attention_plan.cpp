#include "attention_plan.h"

#include <algorithm>

namespace gm {
namespace {

constexpr int64_t tile_queries = 48;     // query rows x heads of a group in one prefill item
constexpr int64_t items_per_thread = 4;  // enough that nobody waits long for the last one
constexpr int32_t item_queries_max = 256;

int32_t num_units(int64_t context_len) { return static_cast<int32_t>((context_len + unit_tokens - 1) / unit_tokens); }

// First unit that the row at `position` sees.
int32_t first_unit(int64_t position, int32_t window) {
  return window > 0 && position >= window ? static_cast<int32_t>((position - window + 1) / unit_tokens) : 0;
}

struct Sequence {
  int32_t id, row_begin, row_end;
  int64_t first_position;
  int32_t unit_begin, unit_end;  // that any of its rows sees

  int64_t num_rows() const { return row_end - row_begin; }
};

Sequence sequence_of(const AttentionStep& step, int64_t s) {
  const int32_t begin = step.query_start[s], end = step.query_start[s + 1];
  const int64_t first = step.context_len[s] - (end - begin);
  return {static_cast<int32_t>(s), begin, end, first, first_unit(first, step.window), num_units(step.context_len[s])};
}

// Units of one kv head, over all rows.
int64_t cost_of(const Sequence& q) { return q.num_rows() * (q.unit_end - q.unit_begin); }
int64_t cost_of(const AttentionItem& item) {
  return int64_t{item.row_end - item.row_begin} * (item.head_end - item.head_begin) * (item.unit_end - item.unit_begin);
}

// Calls add(begin, end) for `count` cut into `parts` nearly equal ranges.
template <class Add>
void cut(int32_t begin, int32_t end, int64_t parts, const Add& add) {
  for (int64_t part = 0; part < parts; ++part) {
    const auto bound = [&](int64_t p) { return begin + static_cast<int32_t>((end - begin) * p / parts); };
    if (bound(part) < bound(part + 1)) add(bound(part), bound(part + 1));
  }
}

int64_t divided_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// One row over many positions: cut along the positions into items of about `item_cost` units of a kv head; all kv heads of
// a unit together if there is enough to do, since their pages lie in one run.
void split(const AttentionStep& step, const Sequence& q, int64_t item_cost, AttentionPlan& plan) {
  const int32_t group = step.num_heads / step.num_kv_heads;
  const int64_t heads_max = std::clamp<int64_t>(item_cost, 1, std::max(1, item_queries_max / group));
  const int64_t unit_parts = divided_up(q.unit_end - q.unit_begin, std::max<int64_t>(1, item_cost / step.num_kv_heads));
  cut(0, step.num_kv_heads, divided_up(step.num_kv_heads, heads_max), [&](int32_t head, int32_t head_end) {
    cut(q.unit_begin, q.unit_end, unit_parts, [&](int32_t unit, int32_t unit_end) {
      plan.items.push_back({q.id, q.row_begin, q.row_end, head, head_end, unit, unit_end, plan.partial_floats});
      plan.partial_floats += int64_t{unit_end - unit} * (head_end - head) * group * (step.head_dim + 2);
    });
  });
  plan.num_merges += step.num_heads;
}

// Rows with all their units; `head_parts` items for each tile of rows.
void whole(const AttentionStep& step, const Sequence& q, int64_t head_parts, AttentionPlan& plan) {
  const int64_t tiles = q.num_rows() == 1 ? 1 : divided_up(q.num_rows() * (step.num_heads / step.num_kv_heads), tile_queries);
  cut(q.row_begin, q.row_end, std::min(tiles, q.num_rows()), [&](int32_t row, int32_t row_end) {
    const int64_t position = q.first_position + row - q.row_begin;
    const int32_t begin = first_unit(position, step.window), end = num_units(position + row_end - row);
    cut(0, step.num_kv_heads, head_parts,
        [&](int32_t head, int32_t head_end) { plan.items.push_back({q.id, row, row_end, head, head_end, begin, end, -1}); });
  });
}

}  // namespace

void plan_attention(const AttentionStep& step, AttentionPlan& plan) {
  plan.items.clear();
  plan.num_merges = 0;
  plan.partial_floats = 0;
  int64_t total = 0, num_whole = 0;
  for (int64_t s = 0; s < step.num_sequences; ++s) total += cost_of(sequence_of(step, s));
  // A single row is cut if it is more than half of a thread's share: fewer than 2 sequences a thread can be.
  const auto is_split = [&](const Sequence& q) {
    return step.num_threads > 1 && q.num_rows() == 1 && q.unit_end - q.unit_begin > 1 &&
           cost_of(q) * 2 * step.num_threads > total;
  };
  const int64_t num_items = items_per_thread * step.num_threads;
  for (int64_t s = 0; s < step.num_sequences; ++s) {
    const Sequence q = sequence_of(step, s);
    if (is_split(q)) split(step, q, divided_up(total * step.num_kv_heads, num_items), plan);
    else num_whole += q.num_rows() > 0;
  }
  const auto num_split = static_cast<int64_t>(plan.items.size());
  const int64_t head_parts = step.num_threads == 1 || num_whole == 0 ? 1 : divided_up(2 * num_items, num_whole);
  for (int64_t s = 0; s < step.num_sequences; ++s) {
    const Sequence q = sequence_of(step, s);
    if (q.num_rows() == 0 || is_split(q)) continue;
    whole(step, q, q.num_rows() > 1 ? step.num_kv_heads : std::min<int64_t>(head_parts, step.num_kv_heads), plan);
  }
  // Longest first, so that the end of the op is even.
  std::stable_sort(plan.items.begin() + num_split, plan.items.end(),
                   [](const AttentionItem& a, const AttentionItem& b) { return cost_of(a) > cost_of(b); });
}

}  // namespace gm
