// Paged attention. A query is one row of one head; the queries of a kv head's group share its keys and values.
//
// For each query and each unit of 64 positions: scores by one chain over d, their maximum over the visible positions,
// probabilities 2^(score - max), their sum in a fixed tree, the output by one chain over the positions; then the unit is
// merged into the query's state. The numbers of a query never depend on which queries stand beside it.
#include "tier.h"
#include "vector.h"

namespace gm::GM_TIER {
namespace {

constexpr float log2_e = 1.4426950408889634f;
constexpr float minus_infinity = -__builtin_inff();
#if defined(GM_avx512)
constexpr int queries_max = 6;
#else
constexpr int queries_max = 2;
#endif
constexpr int head_dim_max = 256;
constexpr int item_queries_max = 64;
constexpr int columns = 64;  // of the output, held in registers at once

struct Query {
  const float* q;      // [head_dim]
  int32_t begin, end;  // positions that it sees: [begin, end)
};

// max and sum in units of log2, output not yet divided by the sum.
struct State {
  float* max;     // [queries]
  float* sum;     // [queries]
  float* output;  // [queries, head_dim]
};

struct Unit {
  const uint8_t* pages[2];  // of this kv head
  int32_t position;         // of its first token
};

// In place, for one query: the fixed formula by which units are merged, in ascending order.
GM_INLINE void merge_unit(float& max, float& sum, float* output, float unit_max, float unit_sum, const float* unit_output,
                          int head_dim) {
  const float both = max > unit_max ? max : unit_max;
  const float before = exp2_negative_one(max - both), now = exp2_negative_one(unit_max - both);
  max = both;
  sum = sum * before + unit_sum * now;
  const Float16 a = splat(before), b = splat(now);
  for (int d = 0; d < head_dim; d += 16) store16(output + d, load16(output + d) * a + load16(unit_output + d) * b);
}

// scores[query][quarter of 16 positions] = q . k
template <int NQ>
GM_INLINE void score_unit(const Unit& unit, int num_pages, const Query* queries, int head_dim, float (*scores)[unit_tokens]) {
  Float16 acc[NQ][4];
  unroll<NQ>([&](auto n) { unroll<4>([&](auto i) { acc[n][i] = splat(0.0f); }); });
  const uint8_t* first = unit.pages[0];
  const uint8_t* second = unit.pages[num_pages - 1];
  for (int d = 0; d < head_dim; d += 2, first += 128, second += 128) {
    unroll<2>([&](auto odd) {
      Float16 line[4];
      unroll<4>([&](auto i) {
        const uint8_t* p = (i < 2 ? first : second) + (i % 2) * 64;
        line[i] = odd ? odd_of(p) : even_of(p);
      });
      unroll<NQ>([&](auto n) {
        const Float16 q = splat(queries[n].q[d + odd]);
        unroll<4>([&](auto i) { acc[n][i] += line[i] * q; });
      });
    });
  }
  unroll<NQ>([&](auto n) { unroll<4>([&](auto i) { store16(scores[n] + 16 * i, acc[n][i]); }); });
}

GM_INLINE Float16 capped(Float16 x, float cap) {
  if (cap <= 0.0f) return x;
  // tanh by way of 2^-|y|, exact sign
  const Float16 y = x * (2.0f * log2_e / cap);
  const Float16 t = exp2_negative(y < 0.0f ? y : -y);
  const Float16 magnitude = (1.0f - t) / (1.0f + t) * cap;
  return x < 0.0f ? -magnitude : magnitude;
}

// Turns scores into probabilities; returns false if the query sees nothing of the unit.
GM_INLINE bool softmax_unit(const Query& query, int32_t position, const AttentionArgs& args, float* scores, float& max,
                            float& sum) {
  const int32_t begin = query.begin - position, end = query.end - position;
  if (end <= 0 || begin >= unit_tokens) return false;
  Float16 s[4];
  Float16 most = splat(minus_infinity);
  unroll<4>([&](auto i) {
    const Int16 lane = Int16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + 16 * i;
    const Float16 value = capped(load16(scores + 16 * i) * args.scale, args.softcap) * log2_e;
    s[i] = ((lane >= begin) & (lane < end)) ? value : splat(minus_infinity);
    most = s[i] > most ? s[i] : most;
  });
  max = max16(most);
  // A row of NaN has no maximum: it stays NaN and spoils only itself.
  const Float16 origin = splat(max == minus_infinity ? 0.0f : max);
  Float16 total = splat(0.0f);
  unroll<4>([&](auto i) {
    const Float16 p = exp2_negative(s[i] - origin);
    store16(scores + 16 * i, p);
    total += p;
  });
  sum = sum16(total);
  return true;
}

// output[query][d .. d + 16 * COLUMNS) = sum over the positions of p * v
template <int NQ, int COLUMNS>
GM_INLINE void gather_unit(const Unit& unit, int num_positions, int value_offset, int head_dim, int d,
                           const float (*p)[unit_tokens], float* output) {
  Float16 acc[NQ][COLUMNS];
  unroll<NQ>([&](auto n) { unroll<COLUMNS>([&](auto i) { acc[n][i] = splat(0.0f); }); });
  for (int t = 0; t < num_positions; t += 2) {
    const uint8_t* line = unit.pages[t / page_tokens] + value_offset + (t % page_tokens) / 2 * head_dim * 4 + d * 4;
    unroll<COLUMNS>([&](auto i) {
      const Float16 v = even_of(line + 64 * i);
      unroll<NQ>([&](auto n) { acc[n][i] += v * splat(p[n][t]); });
    });
    if (t + 1 < num_positions) {
      unroll<COLUMNS>([&](auto i) {
        const Float16 v = odd_of(line + 64 * i);
        unroll<NQ>([&](auto n) { acc[n][i] += v * splat(p[n][t + 1]); });
      });
    }
  }
  unroll<NQ>([&](auto n) { unroll<COLUMNS>([&](auto i) { store16(output + n * head_dim + d + 16 * i, acc[n][i]); }); });
}

// Up to queries_max queries over one unit: leaves each query's (max, sum, output); sees[n] tells if it saw anything.
template <int NQ>
void attend_unit(const Unit& unit, const Query* queries, const AttentionArgs& args, float* max, float* sum, float* output,
                 bool* sees) {
  const int head_dim = args.kv.head_dim;
  alignas(64) float scores[NQ][unit_tokens];
  int32_t end = 0;
  for (int n = 0; n < NQ; ++n) end = queries[n].end > end ? queries[n].end : end;
  const int num_positions = end - unit.position < unit_tokens ? end - unit.position : unit_tokens;
  for (int n = 0; n < NQ; ++n) sees[n] = false;
  if (num_positions <= 0) return;
  score_unit<NQ>(unit, num_positions > page_tokens ? 2 : 1, queries, head_dim, scores);
  for (int n = 0; n < NQ; ++n) {
    max[n] = minus_infinity;
    sum[n] = 0.0f;
    sees[n] = softmax_unit(queries[n], unit.position, args, scores[n], max[n], sum[n]);
    if (!sees[n]) {
      for (int i = 0; i < unit_tokens; ++i) scores[n][i] = 0.0f;
    }
  }
  const int value_offset = head_dim * page_tokens * 2;
  int d = 0;
  for (; d + columns <= head_dim; d += columns)
    gather_unit<NQ, 4>(unit, num_positions, value_offset, head_dim, d, scores, output);
  for (; d < head_dim; d += 16) gather_unit<NQ, 1>(unit, num_positions, value_offset, head_dim, d, scores, output);
}

void attend_queries(int count, const Unit& unit, const Query* queries, const AttentionArgs& args, float* max, float* sum,
                    float* output, bool* sees) {
  switch (count) {
    case 1: return attend_unit<1>(unit, queries, args, max, sum, output, sees);
    case 2: return attend_unit<2>(unit, queries, args, max, sum, output, sees);
#if defined(GM_avx512)
    case 3: return attend_unit<3>(unit, queries, args, max, sum, output, sees);
    case 4: return attend_unit<4>(unit, queries, args, max, sum, output, sees);
    case 5: return attend_unit<5>(unit, queries, args, max, sum, output, sees);
    default: return attend_unit<6>(unit, queries, args, max, sum, output, sees);
#else
    default: return;
#endif
  }
}

const uint8_t* page(const KvView& kv, int32_t block) {
  const int32_t mask = (1 << kv.slab_shift) - 1;
  return kv.pool + (block >> kv.slab_shift) * kv.slab_bytes + kv.layer_offset + (block & mask) * kv.page_bytes;
}

void prefetch_page(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

Unit unit_of(const AttentionArgs& args, const AttentionItem& item, int32_t head, int32_t unit) {
  const int32_t* blocks = args.block_tables + item.sequence * args.block_table_stride;
  const int64_t head_bytes = int64_t{args.kv.head_dim} * page_tokens * 4;
  const int32_t last = (args.context_len[item.sequence] - 1) / page_tokens;
  const int32_t second = 2 * unit + 1 <= last ? 2 * unit + 1 : last;
  return {{page(args.kv, blocks[2 * unit]) + head * head_bytes, page(args.kv, blocks[second]) + head * head_bytes},
          unit * unit_tokens};
}

void clear(State& state, int count, int head_dim) {
  for (int n = 0; n < count; ++n) {
    state.max[n] = minus_infinity;
    state.sum[n] = 0.0f;
  }
  for (int i = 0; i < count * head_dim; ++i) state.output[i] = 0.0f;
}

// The queries of one kv head in an item: rows x heads of the group.
int list_queries(const AttentionArgs& args, const AttentionItem& item, int32_t head, Query* queries) {
  const int32_t group = args.num_heads / args.kv.num_kv_heads;
  const int32_t first_position = args.context_len[item.sequence] - args.query_start[item.sequence + 1];
  int count = 0;
  for (int32_t row = item.row_begin; row < item.row_end; ++row) {
    const int32_t end = first_position + row + 1;
    const int32_t begin = args.window > 0 && end > args.window ? end - args.window : 0;
    for (int32_t i = 0; i < group; ++i) {
      queries[count++] = {args.q + row * args.ldq + (head * group + i) * args.kv.head_dim, begin, end};
    }
  }
  return count;
}

void write_output(const AttentionArgs& args, const AttentionItem& item, int32_t head, int n, float sum, const float* output) {
  const int32_t group = args.num_heads / args.kv.num_kv_heads;
  float* out = args.out + (item.row_begin + n / group) * args.ldo + (head * group + n % group) * args.kv.head_dim;
  for (int d = 0; d < args.kv.head_dim; ++d) out[d] = output[d] / sum;
}

// All units of some queries of one kv head, merged as they come.
void attend_whole(const AttentionArgs& args, const AttentionItem& item, int32_t head) {
  const int head_dim = args.kv.head_dim;
  Query queries[item_queries_max];
  const int count = list_queries(args, item, head, queries);
  alignas(64) float output[item_queries_max * head_dim_max], unit_output[queries_max * head_dim_max];
  float max[item_queries_max], sum[item_queries_max], unit_max[queries_max], unit_sum[queries_max];
  bool sees[queries_max];
  State state{max, sum, output};
  clear(state, count, head_dim);
  for (int32_t u = item.unit_begin; u < item.unit_end; ++u) {
    const Unit unit = unit_of(args, item, head, u);
    if (u + 1 < item.unit_end && count <= queries_max) {
      const Unit next = unit_of(args, item, head, u + 1);
      for (const uint8_t* p : next.pages) prefetch_page(p, int64_t{head_dim} * page_tokens * 4);
    }
    for (int n = 0; n < count; n += queries_max) {
      const int some = count - n < queries_max ? count - n : queries_max;
      attend_queries(some, unit, queries + n, args, unit_max, unit_sum, unit_output, sees);
      for (int i = 0; i < some; ++i) {
        if (sees[i])
          merge_unit(max[n + i], sum[n + i], output + (n + i) * head_dim, unit_max[i], unit_sum[i], unit_output + i * head_dim,
                     head_dim);
      }
    }
  }
  for (int n = 0; n < count; ++n) write_output(args, item, head, n, sum[n], output + n * head_dim);
}

// One row: each unit's (max, sum, output) of each query, for a merge later.
void attend_partial(const AttentionArgs& args, const AttentionItem& item, int32_t head) {
  const int head_dim = args.kv.head_dim;
  Query queries[item_queries_max];
  const int count = list_queries(args, item, head, queries);
  alignas(64) float output[queries_max * head_dim_max];
  float max[queries_max], sum[queries_max];
  bool sees[queries_max];
  float* partial = args.partials + item.partial_offset;
  for (int32_t u = item.unit_begin; u < item.unit_end; ++u) {
    const Unit unit = unit_of(args, item, head, u);
    for (int n = 0; n < count; n += queries_max) {
      const int some = count - n < queries_max ? count - n : queries_max;
      attend_queries(some, unit, queries + n, args, max, sum, output, sees);
      for (int i = 0; i < some; ++i, partial += head_dim + 2) {
        partial[0] = sees[i] ? max[i] : minus_infinity;
        partial[1] = sees[i] ? sum[i] : -1.0f;  // a sum is never negative: this one says "saw nothing"
        for (int d = 0; d < head_dim; ++d) partial[2 + d] = output[i * head_dim + d];
      }
    }
  }
}

// Merges the pieces items[begin .. end) of one (sequence, kv head).
void merge_group(const AttentionArgs& args, const AttentionItem* items, int64_t begin, int64_t end) {
  const int head_dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
  alignas(64) float output[head_dim_max], unit_output[head_dim_max];
  for (int n = 0; n < group; ++n) {
    float max = minus_infinity, sum = 0.0f;
    for (int d = 0; d < head_dim; ++d) output[d] = 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      for (int32_t u = 0; u < items[i].unit_end - items[i].unit_begin; ++u) {
        const float* partial = args.partials + items[i].partial_offset + (u * group + n) * (head_dim + 2);
        if (partial[1] < 0.0f) continue;
        for (int d = 0; d < head_dim; ++d) unit_output[d] = partial[2 + d];
        merge_unit(max, sum, output, partial[0], partial[1], unit_output, head_dim);
      }
    }
    write_output(args, items[begin], items[begin].head_begin, n, sum, output);
  }
}

}  // namespace

void attend(const AttentionArgs& args, const AttentionItem& item) {
  for (int32_t head = item.head_begin; head < item.head_end; ++head) {
    if (item.partial_offset < 0) attend_whole(args, item, head);
    else attend_partial(args, item, head);
  }
}

void merge_attention(const AttentionArgs& args, const AttentionItem* items, int64_t num_items, int64_t merge_begin,
                     int64_t merge_end) {
  int64_t group = 0;
  for (int64_t begin = 0; begin < num_items && items[begin].partial_offset >= 0 && group < merge_end; ++group) {
    int64_t end = begin + 1;
    while (end < num_items && items[end].partial_offset >= 0 && items[end].sequence == items[begin].sequence &&
           items[end].head_begin == items[begin].head_begin) {
      ++end;
    }
    if (group >= merge_begin) merge_group(args, items, begin, end);
    begin = end;
  }
}

}  // namespace gm::GM_TIER
