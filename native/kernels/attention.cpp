// Paged attention: the units of an item, in ascending order, merged as they come or left for a merge.
#include "attention_unit.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

constexpr int item_queries_max = 256;

struct Queries {
  Query each[item_queries_max];  // by kv head, then by row, then by head of the group
  State states[item_queries_max];
  int num_heads, per_head;
};

const uint8_t* page(const KvView& kv, int32_t block) {
  const int32_t mask = (1 << kv.slab_shift) - 1;
  return kv.pool + (block >> kv.slab_shift) * kv.slab_bytes + kv.layer_offset + (block & mask) * kv.page_bytes;
}

// The two pages of a unit; a second page that the sequence has not reached is given as the first.
struct Pages {
  const uint8_t* page[2];
};

Pages pages_of(const AttentionArgs& args, int32_t sequence, int32_t unit) {
  const int32_t* blocks = args.block_tables + sequence * args.block_table_stride;
  const int32_t last = (args.context_len[sequence] - 1) / page_tokens, first = 2 * unit;
  return {{page(args.kv, blocks[first]), page(args.kv, blocks[first < last ? first + 1 : first])}};
}

// Queries of `num_heads` kv heads from `head` on.
void list_queries(const AttentionArgs& args, const AttentionItem& item, int32_t head, int32_t num_heads, Queries& queries) {
  const int32_t group = args.num_heads / args.kv.num_kv_heads, head_dim = args.kv.head_dim;
  const int32_t first_position = args.context_len[item.sequence] - args.query_start[item.sequence + 1];
  queries.num_heads = num_heads;
  queries.per_head = (item.row_end - item.row_begin) * group;
  Query* query = queries.each;
  for (int32_t h = head; h < head + num_heads; ++h) {
    for (int32_t row = item.row_begin; row < item.row_end; ++row) {
      const int32_t end = first_position + row + 1;
      const int32_t begin = args.window > 0 && end > args.window ? end - args.window : 0;
      for (int32_t i = h * group; i < (h + 1) * group; ++i) {
        *query++ = {args.q + row * args.ldq + i * head_dim, args.out + row * args.ldo + i * head_dim, begin, end};
      }
    }
  }
}

// One unit of one kv head with all of its queries, in nearly equal parts.
void attend_head(const Piece& piece, const Head& head, const Query* queries, State* states, int count, Target to) {
  const int parts = (count + queries_max - 1) / queries_max;
  for (int part = 0, begin = 0; part < parts; ++part) {
    const int end = count * (part + 1) / parts;
    attend_queries(end - begin, piece, queries + begin, head, states + begin, to);
    if (to.out) to.out += (end - begin) * to.stride;
    begin = end;
  }
}

// Where the units of a partial item leave their results: all outputs, then all (max, sum).
struct Partial {
  float* outputs;  // [units, queries, head_dim]
  State* states;   // [units, queries]
};

Partial partial_of(const AttentionArgs& args, const AttentionItem& item, int64_t num_queries) {
  float* const outputs = args.partials + item.partial_offset;
  return {outputs, reinterpret_cast<State*>(outputs + (item.unit_end - item.unit_begin) * num_queries * args.kv.head_dim)};
}

// The units of some kv heads, heads inside, so that pages are read once and in order.
void attend_heads(const AttentionArgs& args, const AttentionItem& item, int32_t first_head, Queries& queries,
                  const Partial* partial) {
  const Head head{args.kv.head_dim, args.scale, args.softcap};
  const int64_t head_bytes = int64_t{head.head_dim} * page_tokens * 4;
  const int32_t count = queries.per_head;
  Pages pages = pages_of(args, item.sequence, item.unit_begin), next = pages;
  Target to{nullptr, partial ? partial->outputs : nullptr, head.head_dim};
  State* states = partial ? partial->states : queries.states;
  for (int32_t u = item.unit_begin; u < item.unit_end; ++u, pages = next) {
    if (u + 1 < item.unit_end) next = pages_of(args, item.sequence, u + 1);
    for (int32_t h = 0; h < queries.num_heads; ++h) {
      const int64_t at = (first_head + h) * head_bytes;
      const bool is_last = h + 1 == queries.num_heads;
      const Pages& after = is_last ? next : pages;
      const int64_t at_next = is_last ? first_head * head_bytes : at + head_bytes;
      const Piece piece{
          {pages.page[0] + at, pages.page[1] + at}, {after.page[0] + at_next, after.page[1] + at_next}, u * unit_tokens};
      attend_head(piece, head, queries.each + h * count, partial ? states : states + h * count, count, to);
      if (!partial) continue;
      to.out += count * to.stride;
      states += count;
    }
  }
}

void divide(float* x, float divisor, int32_t count) {
  for (int32_t d = 0; d < count; d += num_lanes) store(x + d, load(x + d) / all(divisor));
}

void attend_whole(const AttentionArgs& args, const AttentionItem& item) {
  Queries queries;
  const int32_t per_head = (item.row_end - item.row_begin) * (args.num_heads / args.kv.num_kv_heads);
  const int32_t at_once = item_queries_max / per_head, head_dim = args.kv.head_dim;
  for (int32_t h = item.head_begin; h < item.head_end; h += at_once) {
    list_queries(args, item, h, h + at_once < item.head_end ? at_once : item.head_end - h, queries);
    const int32_t count = queries.num_heads * per_head;
    for (int32_t n = 0; n < count; ++n) {
      queries.states[n] = {minus_infinity, 0.0f};
      std::memset(queries.each[n].out, 0, head_dim * sizeof(float));
    }
    attend_heads(args, item, h, queries, nullptr);
    for (int32_t n = 0; n < count; ++n) divide(queries.each[n].out, queries.states[n].sum, head_dim);
  }
}

void attend_partial(const AttentionArgs& args, const AttentionItem& item) {
  Queries queries;
  list_queries(args, item, item.head_begin, item.head_end - item.head_begin, queries);
  const Partial partial = partial_of(args, item, queries.num_heads * queries.per_head);
  attend_heads(args, item, item.head_begin, queries, &partial);
}

// Some units of one query, merged into `out`.
template <int... P>
GM_INLINE void merge_columns(float* out, const float* outputs, int64_t stride, const Merge& merge, int count, List<P...>) {
  Floats acc[] = {load(out + P * num_lanes)...};
  for (int i = 0; i < count; ++i) {
    const Floats before = all(merge.before[i]), now = all(merge.now[i]);
    const float* const unit = outputs + i * stride;
    ((acc[P] = multiply_add(load(unit + P * num_lanes), now, acc[P] * before)), ...);
  }
  (store(out + P * num_lanes, acc[P]), ...);
}

// Up to 16 units of one query of a partial item.
void merge_units(State& state, float* out, const State* states, const float* outputs, int64_t num_queries, int count,
                 int32_t head_dim) {
  alignas(64) float so_far[16] = {}, unit[16] = {};
  for (int i = 0; i < count; ++i) {
    unit[i] = states[i * num_queries].max;
    so_far[i] = state.max;
    state.max = larger(all(state.max), all(unit[i]))[0];
  }
  Merge merge;
  weigh(so_far, unit, count, merge);
  for (int i = 0; i < count; ++i) state.sum = merged(state.sum, merge.before[i], states[i * num_queries].sum, merge.now[i]);
  const int64_t stride = num_queries * head_dim;
  constexpr int wide = 4 * num_lanes, narrow = 16 / num_lanes;
  int32_t d = 0;
  for (; d + wide <= head_dim; d += wide) merge_columns(out + d, outputs + d, stride, merge, count, Indices<4>{});
  for (; d < head_dim; d += 16) merge_columns(out + d, outputs + d, stride, merge, count, Indices<narrow>{});
}

// Query n of a group: consecutive items of one sequence and the same heads, in ascending order of units.
void merge_query(const AttentionArgs& args, const AttentionItem* items, int64_t begin, int64_t end, int32_t n) {
  const int32_t group = args.num_heads / args.kv.num_kv_heads, head_dim = args.kv.head_dim;
  const AttentionItem& first = items[begin];
  const int64_t num_queries = int64_t{first.head_end - first.head_begin} * group;
  float* const out = args.out + first.row_begin * args.ldo + (first.head_begin * group + n) * head_dim;
  State state{minus_infinity, 0.0f};
  std::memset(out, 0, head_dim * sizeof(float));
  for (int64_t i = begin; i < end; ++i) {
    const Partial partial = partial_of(args, items[i], num_queries);
    const int32_t num_units = items[i].unit_end - items[i].unit_begin;
    for (int32_t u = 0; u < num_units; u += 16) {
      merge_units(state, out, partial.states + u * num_queries + n, partial.outputs + (u * num_queries + n) * head_dim,
                  num_queries, num_units - u < 16 ? num_units - u : 16, head_dim);
    }
  }
  divide(out, state.sum, head_dim);
}

}  // namespace

void attend(const AttentionArgs& args, const AttentionItem& item) {
  if (item.partial_offset < 0) attend_whole(args, item);
  else attend_partial(args, item);
}

void merge_attention(const AttentionArgs& args, const AttentionItem* items, int64_t num_items, int64_t merge_begin,
                     int64_t merge_end) {
  const int32_t group = args.num_heads / args.kv.num_kv_heads;
  int64_t first = 0;  // merge of this group
  for (int64_t begin = 0, end; begin < num_items && items[begin].partial_offset >= 0 && first < merge_end; begin = end) {
    const AttentionItem& item = items[begin];
    for (end = begin + 1; end < num_items && items[end].partial_offset >= 0 && items[end].sequence == item.sequence &&
                          items[end].head_begin == item.head_begin;) {
      ++end;
    }
    const int64_t count = int64_t{item.head_end - item.head_begin} * group;
    for (int64_t n = merge_begin > first ? merge_begin - first : 0; n < count && first + n < merge_end; ++n) {
      merge_query(args, items, begin, end, static_cast<int32_t>(n));
    }
    first += count;
  }
}

}  // namespace gm::GM_TIER
