// Row-wise kernels: each row is computed alone, in one order, whatever the threads do.
#include "quantize.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

// Columns worked on at a time: a few groups, so that what one loop writes is still in the first cache for the next.
constexpr int64_t chunk_columns = 128;

GM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls f(i, count) for each register of columns [0, width); `count` is below num_lanes only at the end.
template <class F>
GM_INLINE void for_lanes(int64_t width, const F& f) {
  int64_t i = 0;
  for (; i + num_lanes <= width; i += num_lanes) f(i, int64_t{num_lanes});
  if (i < width) f(i, width - i);
}

GM_INLINE Floats load_some(const float* p, int64_t count) {
  if (count == num_lanes) return load(p);
  float lanes[num_lanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}

GM_INLINE void store_some(float* p, Floats value, int64_t count) {
  if (count == num_lanes) return store(p, value);
  float lanes[num_lanes];
  store(lanes, value);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

GM_INLINE float mean_square(const float* x, int64_t width) {
  constexpr int parts = 4;
  Floats sums[parts] = {};
  int64_t i = 0;
  for (; i + parts * num_lanes <= width; i += parts * num_lanes) {
    unroll<parts>([&](auto j) {
      const Floats v = load(x + i + j * num_lanes);
      sums[j] = multiply_add(v, v, sums[j]);
    });
  }
  for (; i < width; i += num_lanes) {
    const Floats v = load_some(x + i, smaller(num_lanes, width - i));
    sums[0] = multiply_add(v, v, sums[0]);
  }
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(width);
}

// Calls value(column, count) for columns [begin, end) and gives the results to `out` (or null) and `quantized` (or null).
template <class Value>
GM_INLINE void write_columns(int64_t begin, int64_t end, float* out, const QuantizedRow* quantized, const Value& value) {
  if (!quantized) {
    for_lanes(end - begin, [&](int64_t i, int64_t count) { store_some(out + begin + i, value(begin + i, count), count); });
    return;
  }
  alignas(64) float chunk[chunk_columns];
  for (int64_t start = begin; start < end; start += chunk_columns) {
    const int64_t width = smaller(chunk_columns, end - start);
    for (int64_t i = 0; i < width; i += num_lanes) {
      const Floats v = value(start + i, int64_t{num_lanes});
      store(chunk + i, v);
      if (out) store(out + start + i, v);
    }
    quantize_groups(chunk, *quantized, start / block_k, (start + width) / block_k);
  }
}

template <Activation kKind>
GM_INLINE Floats activate(Floats x) {
  if constexpr (kKind == Activation::silu) return silu(x);
  if constexpr (kKind == Activation::gelu_tanh) return gelu_tanh(x);
  return gelu(x);
}

template <Activation kKind>
void act_mul_rows(const ActMulArgs& args) {
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const float *gate = args.gate + r * args.ld, *up = args.up + r * args.ld;
    const QuantizedRow row = quantized_row(args.quantized, r, args.width);
    write_columns(
        args.column_begin, args.column_end, args.out ? args.out + r * args.ldo : nullptr, args.quantized ? &row : nullptr,
        [&](int64_t i, int64_t count) { return activate<kKind>(load_some(gate + i, count)) * load_some(up + i, count); });
  }
}

void norm_row(const NormArgs& args, int64_t r) {
  const int64_t span = args.head_dim ? args.head_dim : args.width;
  const float* x = args.x + r * args.ldx;
  const QuantizedRow row = quantized_row(args.quantized, r, args.width);
  for (int64_t start = 0; start < args.width; start += span) {
    const float factor = 1.0f / __builtin_sqrtf(mean_square(x + start, span) + args.eps);
    write_columns(
        start, start + span, args.out ? args.out + r * args.ldo : nullptr, args.quantized ? &row : nullptr,
        [&](int64_t i, int64_t count) { return load_some(x + i, count) * factor * load_some(args.weight + i - start, count); });
  }
}

}  // namespace

int64_t quantized_bytes(int64_t num_rows, int64_t k) { return num_rows * quantized_row_bytes(k); }

void quantize(const QuantizeArgs& args) {
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    quantize_groups(args.x + r * args.ldx + args.column_begin, quantized_row(args.quantized, r, args.width),
                    args.column_begin / block_k, args.column_end / block_k);
  }
}

void rms_norm(const NormArgs& args) {
  for (int64_t r = args.row_begin; r < args.row_end; ++r) norm_row(args, r);
}

void act_mul(const ActMulArgs& args) {
  switch (args.kind) {
    case Activation::silu: return act_mul_rows<Activation::silu>(args);
    case Activation::gelu_tanh: return act_mul_rows<Activation::gelu_tanh>(args);
    case Activation::gelu: return act_mul_rows<Activation::gelu>(args);
  }
}

void add(const float* x, const float* y, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] + y[i];
}

void softcap(const float* x, float cap, float* out, int64_t count) {
  for_lanes(count, [&](int64_t i, int64_t n) { store_some(out + i, tanh_of(load_some(x + i, n) / cap) * cap, n); });
}

}  // namespace gm::GM_TIER
