// Some queries over one unit of 64 positions. A query is one row of one head; the queries of a kv head's group, and of
// neighbouring rows, share the keys and values that are in registers. Included by attention.cpp.
//
// The numbers of a query never depend on which queries stand beside it, nor on the tile's shape: its scores are chains
// over d, its probabilities 2^(score - largest), their sum a fixed tree, its output a chain over the positions it sees.
#pragma once
#include <utility>

#include "attention.h"
#include "math.h"

namespace gm::GM_TIER {
namespace {

constexpr float minus_infinity = -__builtin_inff();
constexpr int queries_max = 6;
constexpr int page_vectors = page_tokens / num_lanes;
constexpr int unit_vectors = unit_tokens / num_lanes;

// Vectors of accumulators beside each other for each query: as many as the registers of the tier hold.
constexpr int tile_vectors(int num_queries) { return num_lanes == 16 || num_queries <= 3 ? 4 : 2; }

struct Query {
  const float* q;      // [head_dim]
  float* out;          // [head_dim]
  int32_t begin, end;  // positions that it sees: [begin, end)
};

// A query over the units so far: its largest score and the sum of its probabilities, in powers of two.
struct State {
  float max, sum;
};

// One unit of one kv head, and the one that comes after it, whose lines are fetched meanwhile.
struct Piece {
  const uint8_t* pages[2];
  const uint8_t* next[2];
  int32_t position;
};

struct Head {
  int32_t head_dim;
  float scale, softcap;
};

template <int N>
using Indices = std::make_integer_sequence<int, N>;
template <int... I>
using List = std::integer_sequence<int, I...>;

GM_INLINE Floats larger(Floats a, Floats b) {
#if defined(GM_avx512)
  return _mm512_max_ps(a, b);
#elif defined(GM_avx2)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// 2^x for x <= 0, relative error below 2e-7; 2^-100 below that; NaN stays NaN.
GM_INLINE Floats exp2_of(Floats x) {
  const Floats clamped = larger(all(-100.0f), x);
  const Floats shifted = clamped + round_magic;
  const Floats f = clamped - (shifted - round_magic);
  Floats p = multiply_add(all(0.001326472731307149f), f, 0.009671512991189957f);  // fit 9.1e-8
  p = multiply_add(p, f, 0.05550733581185341f);
  p = multiply_add(p, f, 0.24022242426872253f);
  p = multiply_add(p, f, 0.6931470036506653f);
  p = multiply_add(p, f, 1.0f);
  return p * floats_of((bits_of(shifted) + 127u) << 23);
}

// Both halves of a vector into one, until one lane is left.
template <class Operator>
GM_INLINE float fold(Floats value, const Operator& both) {
  typedef float Four __attribute__((vector_size(16)));
#if defined(GM_avx512)
  const __m256 eight = both(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
#elif defined(GM_avx2)
  const __m256 eight = value;
#endif
#if defined(GM_avx512) || defined(GM_avx2)
  Four four = both(static_cast<Four>(_mm256_castps256_ps128(eight)), static_cast<Four>(_mm256_extractf128_ps(eight, 1)));
#else
  Four four = value;
#endif
  four = both(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  return both(four, __builtin_shufflevector(four, four, 1, 1, 1, 1))[0];
}

GM_INLINE Bits load_bits(const uint8_t* p) {
  Bits bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
GM_INLINE Floats even_of(const uint8_t* p) { return floats_of(load_bits(p) << 16); }
GM_INLINE Floats odd_of(const uint8_t* p) { return floats_of(load_bits(p) & 0xffff0000u); }

// acc[P] += vectors[P] * factor
template <int... P>
GM_INLINE void add_scaled(Floats (&acc)[sizeof...(P)], const Floats (&vectors)[sizeof...(P)], Floats factor, List<P...>) {
  ((acc[P] = multiply_add(vectors[P], factor, acc[P])), ...);
}

template <int... P>
GM_INLINE void clear(Floats (&acc)[sizeof...(P)], List<P...>) {
  ((acc[P] = Floats{}), ...);
}

// Scores of the positions in vectors [vector, vector + P) of the unit.
template <int... N, int... P>
GM_INLINE void score_tile(const Piece& piece, int vector, const Query* queries, int32_t head_dim, float (*scores)[unit_tokens],
                          List<N...>, List<P...> vectors) {
  constexpr int per_page = sizeof...(P) < page_vectors ? sizeof...(P) : page_vectors;
  const uint8_t* const first = piece.pages[vector / page_vectors] + vector % page_vectors * num_lanes * 4;
  const uint8_t* const bases[2] = {first, piece.pages[1]};
  const uint8_t* const ahead[2] = {piece.next[vector / page_vectors], piece.next[1]};
  Floats acc[sizeof...(N)][sizeof...(P)];
  (clear(acc[N], vectors), ...);
  for (int32_t d = 0; d < head_dim; d += 2) {
    const int64_t at = int64_t{d} * 64;
    if (vector % page_vectors == 0) {
      __builtin_prefetch(ahead[0] + at);
      __builtin_prefetch(ahead[0] + at + 64);
      if constexpr (sizeof...(P) > page_vectors) {
        __builtin_prefetch(ahead[1] + at);
        __builtin_prefetch(ahead[1] + at + 64);
      }
    }
    const Floats even[] = {even_of(bases[P / per_page] + at + P % per_page * num_lanes * 4)...};
    (add_scaled(acc[N], even, all(queries[N].q[d]), vectors), ...);
    const Floats odd[] = {odd_of(bases[P / per_page] + at + P % per_page * num_lanes * 4)...};
    (add_scaled(acc[N], odd, all(queries[N].q[d + 1]), vectors), ...);
  }
  const auto keep = [&](const Floats(&row)[sizeof...(P)], float* to) { (store(to + (vector + P) * num_lanes, row[P]), ...); };
  (keep(acc[N], scores[N]), ...);
}

// Positions of the unit that a query sees.
struct Span {
  int32_t begin, end;
};

GM_INLINE Span span_of(const Query& query, int32_t position) {
  const int32_t begin = query.begin - position, end = query.end - position;
  return {begin < 0 ? 0 : begin, end > unit_tokens ? unit_tokens : end};
}

GM_INLINE Ints is_visible(int vector, Span span) {
  Ints lanes;
  for (int i = 0; i < num_lanes; ++i) lanes[i] = vector * num_lanes + i;
  return (lanes >= span.begin) & (lanes < span.end);
}

// Turns the scores of one query into probabilities; those outside the span become 0.
template <bool kMasked>
GM_INLINE State softmax(float* scores, Span span, float factor) {
  Floats most = all(minus_infinity), total{};
#pragma GCC unroll 16
  for (int i = 0; i < unit_vectors; ++i) {
    Floats score = load(scores + i * num_lanes);
    if constexpr (kMasked) score = is_visible(i, span) ? score : all(minus_infinity);
    most = larger(score, most);
  }
  const auto larger_half = [](auto a, auto b) { return a > b ? a : b; };
  const float max = fold(most, larger_half) * factor;
#pragma GCC unroll 16
  for (int i = 0; i < unit_vectors; ++i) {
    Floats p = exp2_of(multiply_add(load(scores + i * num_lanes), all(factor), -max));
    if constexpr (kMasked) p = is_visible(i, span) ? p : Floats{};
    store(scores + i * num_lanes, p);
    total = i == 0 ? p : total + p;
  }
  return {max, fold(total, [](auto a, auto b) { return a + b; })};
}

// A function of its own, since it is rare: gemma 2.
[[gnu::noinline]] void cap_scores(float* scores, const Head& head) {
  for (int i = 0; i < unit_tokens; i += num_lanes) {
    store(scores + i, tanh_of(load(scores + i) * (head.scale / head.softcap)) * head.softcap);
  }
}

GM_INLINE State softmax_query(float* scores, Span span, const Head& head) {
  constexpr float log2_e = 1.4426950408889634f;
  if (head.softcap > 0.0f) cap_scores(scores, head);
  const float factor = head.softcap > 0.0f ? log2_e : head.scale * log2_e;
  if (span.begin == 0 && span.end == unit_tokens) return softmax<false>(scores, span, factor);
  return softmax<true>(scores, span, factor);
}

// How what is known so far and one more unit are weighed: the fixed formula by which units are merged, in ascending order.
struct Merge {
  alignas(64) float max[16], before[16], now[16];
};

// Of `count` states each (at most 16).
GM_INLINE void weigh(const float* so_far, const float* unit, int count, Merge& merge) {
  for (int i = 0; i < count; i += num_lanes) {
    const Floats a = load(so_far + i), b = load(unit + i), both = larger(a, b);
    store(merge.max + i, both);
    store(merge.before + i, exp2_of(a - both));
    store(merge.now + i, exp2_of(b - both));
  }
}

GM_INLINE float merged(float so_far, float before, float unit, float now) {
  return multiply_add(all(unit), all(now), all(so_far) * all(before))[0];
}

// Where a tile of values goes: merged into the query's output, or (a null `merge`) as it is into out[n * stride].
struct Target {
  const Merge* merge;
  float* out;
  int64_t stride;
};

template <int... P>
GM_INLINE void finish_query(const Floats (&acc)[sizeof...(P)], const Query& query, const Target& to, int n, int32_t d,
                            List<P...>) {
  if (!to.merge) {
    (store(to.out + n * to.stride + d + P * num_lanes, acc[P]), ...);
    return;
  }
  float* const out = query.out + d;
  const Floats before = all(to.merge->before[n]), now = all(to.merge->now[n]);
  (store(out + P * num_lanes, multiply_add(acc[P], now, load(out + P * num_lanes) * before)), ...);
}

// Columns [d, d + P * num_lanes): sums over the positions of probability * value. A position that one query sees and
// another does not is added for the one alone, since its value may be anything, NaN included.
template <int... N, int... P>
GM_INLINE void gather_tile(const Piece& piece, int32_t d, const Query* queries, const Span* spans, Span some, Span common,
                           int32_t head_dim, const float (*p)[unit_tokens], const Target& to, List<N...>, List<P...> vectors) {
  const int64_t values = int64_t{head_dim} * page_tokens * 2 + d * 4, pair_bytes = int64_t{head_dim} * 4;
  Floats acc[sizeof...(N)][sizeof...(P)];
  (clear(acc[N], vectors), ...);
  const auto line_of = [&](int32_t t) { return piece.pages[t / page_tokens] + values + t % page_tokens / 2 * pair_bytes; };
  const auto add_apart = [&](int32_t begin, int32_t end) {
    for (int32_t t = begin; t < end; ++t) {
      const uint8_t* const line = line_of(t);
      const Floats v[] = {(t & 1 ? odd_of(line + P * num_lanes * 4) : even_of(line + P * num_lanes * 4))...};
      ((t >= spans[N].begin && t < spans[N].end ? add_scaled(acc[N], v, all(p[N][t]), vectors) : void()), ...);
    }
  };
  const int32_t begin = common.begin + (common.begin & 1), end = common.end - (common.end & 1);
  if (begin >= end) {
    add_apart(some.begin, some.end);
  } else {
    add_apart(some.begin, begin);
    for (int32_t t = begin; t < end; t += 2) {
      const uint8_t* const line = line_of(t);
      const uint8_t* const ahead = piece.next[t / page_tokens] + (line - piece.pages[t / page_tokens]);
#pragma GCC unroll 4
      for (size_t i = 0; i < sizeof...(P) * num_lanes / 16; ++i) __builtin_prefetch(ahead + i * 64);
      const Floats even[] = {even_of(line + P * num_lanes * 4)...};
      (add_scaled(acc[N], even, all(p[N][t]), vectors), ...);
      const Floats odd[] = {odd_of(line + P * num_lanes * 4)...};
      (add_scaled(acc[N], odd, all(p[N][t + 1]), vectors), ...);
    }
    add_apart(end, some.end);
  }
  ((spans[N].begin < spans[N].end ? finish_query(acc[N], queries[N], to, N, d, vectors) : void()), ...);
}

// The states of NQ queries over one unit, and the tiles of its values. A query that sees nothing of the unit is left alone.
template <int NQ>
void attend_unit(const Piece& piece, const Query* queries, const Head& head, State* states, const Target& target) {
  constexpr int wide = tile_vectors(NQ), narrow = 16 / num_lanes;
  alignas(64) float scores[NQ][unit_tokens];
  alignas(64) float so_far[16] = {}, unit[16] = {};
  float sums[NQ];
  Span spans[NQ], some{unit_tokens, 0}, common{0, unit_tokens};
  for (int n = 0; n < NQ; ++n) {
    spans[n] = span_of(queries[n], piece.position);
    if (spans[n].begin >= spans[n].end) continue;
    some = {spans[n].begin < some.begin ? spans[n].begin : some.begin, spans[n].end > some.end ? spans[n].end : some.end};
  }
  if (some.begin >= some.end) return;
  for (int vector = 0; vector * num_lanes < some.end; vector += wide) {
    score_tile(piece, vector, queries, head.head_dim, scores, Indices<NQ>{}, Indices<wide>{});
  }
  for (int n = 0; n < NQ; ++n) {
    common = {spans[n].begin > common.begin ? spans[n].begin : common.begin,
              spans[n].end < common.end ? spans[n].end : common.end};
    if (spans[n].begin >= spans[n].end) continue;
    const State state = softmax_query(scores[n], spans[n], head);
    so_far[n] = states[n].max;
    unit[n] = state.max;
    sums[n] = state.sum;
  }
  Merge merge;
  Target to = target;
  if (!target.out) {
    weigh(so_far, unit, NQ, merge);
    to.merge = &merge;
  }
  for (int n = 0; n < NQ; ++n) {
    if (spans[n].begin >= spans[n].end) continue;
    states[n] =
        to.merge ? State{merge.max[n], merged(states[n].sum, merge.before[n], sums[n], merge.now[n])} : State{unit[n], sums[n]};
  }
  int32_t d = 0;
  for (; d + wide * num_lanes <= head.head_dim; d += wide * num_lanes) {
    gather_tile(piece, d, queries, spans, some, common, head.head_dim, scores, to, Indices<NQ>{}, Indices<wide>{});
  }
  if constexpr (wide > narrow) {
    for (; d < head.head_dim; d += 16) {
      gather_tile(piece, d, queries, spans, some, common, head.head_dim, scores, to, Indices<NQ>{}, Indices<narrow>{});
    }
  }
}

void attend_queries(int count, const Piece& piece, const Query* queries, const Head& head, State* states, const Target& to) {
  static_assert(queries_max == 6);
  switch (count) {
    case 1: return attend_unit<1>(piece, queries, head, states, to);
    case 2: return attend_unit<2>(piece, queries, head, states, to);
    case 3: return attend_unit<3>(piece, queries, head, states, to);
    case 4: return attend_unit<4>(piece, queries, head, states, to);
    case 5: return attend_unit<5>(piece, queries, head, states, to);
    default: return attend_unit<6>(piece, queries, head, states, to);
  }
}

}  // namespace
}  // namespace gm::GM_TIER
