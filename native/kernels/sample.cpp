// The native form of src/gristmill/sampling/sampler.py, step by step and bit by bit; compiled with -ffp-contract=off, since
// every operation there rounds once. Sums of weights are integers below 2^53, exact in double in any order.
#include "philox.h"
#include "select.h"
#include "tier.h"
#include "vector.h"

namespace gm::GM_TIER {
namespace {

constexpr float minus_infinity = -__builtin_inff();
constexpr float weight_one = 17179869184.0f;  // 2^34

struct Scratch {
  float* raw;       // [vocab] the logits before bias and penalties, if logprobs are asked
  float* weights;   // [vocab]
  int32_t* ids;     // [vocab]
  int32_t* counts;  // [vocab]
};

Scratch scratch_of(const SampleArgs& args) {
  auto* base = static_cast<float*>(args.scratch);
  const int64_t stride = (args.vocab + 15) / 16 * 16;
  auto* integers = reinterpret_cast<int32_t*>(base + 2 * stride);
  return {base, base + stride, integers, integers + stride};
}

// The largest of x, and whether every value is finite. NaN never wins the comparison, but is seen in the exponents.
float largest(const float* x, int64_t count, bool& is_finite) {
  Float16 most = splat(minus_infinity);
  Bits16 spoiled = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Float16 v = load16(x + i);
    most = v > most ? v : most;
    spoiled |= reinterpret_cast<Bits16>((reinterpret_cast<Bits16>(v) & 0x7f800000u) == 0x7f800000u);
  }
  float max = max16(most);
  uint32_t any = 0;
  for (int lane = 0; lane < 16; ++lane) any |= spoiled[lane];
  for (; i < count; ++i) {
    max = x[i] > max ? x[i] : max;
    any |= (float_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
  }
  is_finite = any == 0;
  return max;
}

int32_t first_equal(const float* x, int64_t count, float value) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Int16 equal = load16(x + i) == value;
    int32_t any = 0;
    for (int lane = 0; lane < 16; ++lane) any |= equal[lane];
    if (any) break;
  }
  while (i < count && x[i] != value) ++i;
  return static_cast<int32_t>(i < count ? i : 0);
}

// floor for 0 <= x < 2^35: below 2^23 through an integer, above it is one already.
GM_INLINE Float16 floor_positive(Float16 x) {
  const Float16 small = x < 8388608.0f ? x : splat(0.0f);
  const Float16 floored = __builtin_convertvector(__builtin_convertvector(small, Int16), Float16);
  return x < 8388608.0f ? floored : x;
}

GM_INLINE Float16 weight_of(Float16 x, float max, float temperature) {
  Float16 z = x - max;
  if (temperature != 1.0f) z = z / splat(temperature);
  Float16 t = z * 1.4426950408889634f;
  t = t < -35.0f ? splat(-35.0f) : t;
  const Float16 truncated = __builtin_convertvector(__builtin_convertvector(t, Int16), Float16);
  const Float16 n = truncated > t ? truncated - 1.0f : truncated;
  const Float16 f = t - n;
  Float16 p = splat(0.0002161293086828664f);
  p = p * f + 0.0012467841152101755f;
  p = p * f + 0.00967545248568058f;
  p = p * f + 0.055485282093286514f;
  p = p * f + 0.2402293086051941f;
  p = p * f + 0.6931470632553101f;
  p = p * f + 1.0f;
  const Bits16 exponent = reinterpret_cast<Bits16>(__builtin_convertvector(n, Int16) + 34 + 127) << 23;
  const Float16 scaled = floor_positive(p * reinterpret_cast<Float16>(exponent));
  return n < -34.0f ? splat(0.0f) : scaled;
}

// Weights of x into w (null: only summed); returns their sum.
double weigh(const float* x, int64_t count, float max, float temperature, float* w) {
  double sums[16] = {};
  for (int64_t i = 0; i < count; i += 16) {
    Float16 v = splat(minus_infinity);
    const int some = count - i < 16 ? static_cast<int>(count - i) : 16;
    if (some == 16) v = load16(x + i);
    else
      for (int lane = 0; lane < some; ++lane) v[lane] = x[i + lane];
    const Float16 weight = weight_of(v, max, temperature);
    if (w)
      for (int lane = 0; lane < some; ++lane) w[i + lane] = weight[lane];
    for (int lane = 0; lane < 16; ++lane) sums[lane] += static_cast<double>(weight[lane]);
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

// Natural logarithm of a positive normal number, by ln(m) = 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)).
double natural_log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  std::memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.0;
  for (int n = 27; n >= 1; n -= 2) series = series * square + 1.0 / n;
  return exponent * 0.69314718055994530942 + 2.0 * s * series;
}

void top_logprobs(const float* raw, int64_t vocab, float max, double log_sum, SampleResult& result, int32_t k) {
  int32_t count = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (count == k && !(count > 0 && raw[i] > raw[result.top_ids[count - 1]])) continue;
    int32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && raw[i] > raw[result.top_ids[at - 1]]; --at) result.top_ids[at] = result.top_ids[at - 1];
    result.top_ids[at] = static_cast<int32_t>(i);
  }
  for (int32_t i = 0; i < count; ++i) {
    const double shifted = static_cast<double>(raw[result.top_ids[i]]) - static_cast<double>(max);
    result.top_logprobs[i] = static_cast<float>(shifted - log_sum);
  }
  for (int32_t i = count; i < k; ++i) {
    result.top_ids[i] = -1;
    result.top_logprobs[i] = 0.0f;
  }
}

// Steps 3 to 5, in place.
void adjust(float* x, const SampleRow& row, int32_t* counts) {
  for (int32_t i = 0; i < row.num_bias; ++i) x[row.bias_ids[i]] += row.bias_values[i];
  for (int32_t i = 0; i < row.num_banned; ++i) x[row.banned_ids[i]] = minus_infinity;
  if (row.repetition_penalty != 1.0f) {
    for (int32_t i = 0; i < row.num_history; ++i) counts[row.history_ids[i]] = 0;
    for (int32_t i = 0; i < row.num_history; ++i) {
      const int32_t id = row.history_ids[i];
      if (counts[id]++ == 0) x[id] = x[id] > 0.0f ? x[id] / row.repetition_penalty : x[id] * row.repetition_penalty;
    }
  }
  if (row.frequency_penalty == 0.0f && row.presence_penalty == 0.0f) return;
  for (int32_t i = row.history_prompt_len; i < row.num_history; ++i) counts[row.history_ids[i]] = 0;
  for (int32_t i = row.history_prompt_len; i < row.num_history; ++i) ++counts[row.history_ids[i]];
  for (int32_t i = row.history_prompt_len; i < row.num_history; ++i) {
    const int32_t id = row.history_ids[i];
    if (counts[id] == 0) continue;
    if (row.frequency_penalty != 0.0f) x[id] = x[id] - row.frequency_penalty * static_cast<float>(counts[id]);
    if (row.presence_penalty != 0.0f) x[id] = x[id] - row.presence_penalty;
    counts[id] = 0;
  }
}

// How many of the first `count` ids in order top_p keeps; ids must be in order as far as the walk goes.
int64_t keep_top_p(const float* x, const float* w, int32_t* ids, int64_t count, float top_p) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(w[ids[i]]);
  const double limit = static_cast<double>(top_p) * total;
  double before = 0;
  int64_t ordered = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i == ordered) {
      const int64_t more = ordered == 0 ? 64 : ordered * 7;
      const int64_t end = ordered + more < count ? ordered + more : count;
      select_first(ids + ordered, count - ordered, end - ordered, x);
      sort_in_order(ids + ordered, end - ordered, x);
      ordered = end;
    }
    if (i > 0 && !(before < limit)) return i;
    before += static_cast<double>(w[ids[i]]);
  }
  return count;
}

// Steps 6 to 9.
int32_t choose(const float* x, int64_t vocab, const SampleRow& row, const Scratch& scratch) {
  bool is_finite;
  const float max = largest(x, vocab, is_finite);
  if (row.temperature == 0.0f || !__builtin_isfinite(max)) return first_equal(x, vocab, max);
  float* w = scratch.weights;
  double total = weigh(x, vocab, max, row.temperature, w);
  const float least = row.min_p * weight_one;
  const bool is_ordered = row.top_k > 0 || row.top_p < 1.0f;
  if (!is_ordered) {
    if (least > 0.0f) {
      total = 0;
      for (int64_t i = 0; i < vocab; ++i) {
        w[i] = w[i] >= least ? w[i] : 0.0f;
        total += static_cast<double>(w[i]);
      }
    }
    return draw_all(w, vocab, target_of(row, total));
  }
  int32_t* ids = scratch.ids;
  int64_t count = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    ids[count] = static_cast<int32_t>(i);
    count += w[i] >= least;
  }
  if (row.top_k > 0 && row.top_k < count) {
    select_first(ids, count, row.top_k, x);
    count = row.top_k;
  }
  if (row.top_p < 1.0f) count = keep_top_p(x, w, ids, count, row.top_p);
  sort_by_id(ids, count);
  total = 0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(w[ids[i]]);
  return draw_listed(w, ids, count, target_of(row, total));
}

}  // namespace

int64_t sample_scratch_bytes(int64_t vocab) { return (vocab + 15) / 16 * 16 * 16; }

void sample(const SampleArgs& args) {
  const SampleRow& row = *args.row;
  SampleResult& result = *args.result;
  const Scratch scratch = scratch_of(args);
  const float max = largest(args.logits, args.vocab, result.is_finite);
  result.token_id = 0;
  result.logprob = 0.0f;
  if (!result.is_finite) return;
  const bool wants_logprobs = row.num_logprobs >= 0;
  double log_sum = 0;
  if (wants_logprobs) {
    log_sum = natural_log(weigh(args.logits, args.vocab, max, 1.0f, nullptr) * 0x1p-34);
    std::memcpy(scratch.raw, args.logits, args.vocab * sizeof(float));
    top_logprobs(scratch.raw, args.vocab, max, log_sum, result, row.num_logprobs);
  }
  adjust(args.logits, row, scratch.counts);
  result.token_id = choose(args.logits, args.vocab, row, scratch);
  if (wants_logprobs) {
    const double shifted = static_cast<double>(scratch.raw[result.token_id]) - static_cast<double>(max);
    result.logprob = static_cast<float>(shifted - log_sum);
  }
}

}  // namespace gm::GM_TIER
