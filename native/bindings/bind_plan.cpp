#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "../runtime/pack.h"
#include "bound_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gm {
namespace {

using Place = std::pair<int32_t, int32_t>;  // buffer, column
using Waits = std::pair<bool, bool>;        // barrier before the op: in steps of many rows, of one row
using SegmentSpec = std::tuple<int, Bytes, std::optional<Bytes>, int64_t, Place>;  // format, weight, bias, n, y

View view(const std::optional<Place>& place) { return place ? View{place->first, place->second} : View{}; }

template <class T>
void add(BoundPlan& bound, Waits waits, T op) {
  op.has_barrier = waits.first;
  op.has_barrier_single = waits.second;
  bound.get().add(std::make_unique<T>(std::move(op)));
}

const uint8_t* keep(BoundPlan& bound, const Bytes& array, int64_t bytes) {
  if (static_cast<int64_t>(array.size()) < bytes) throw std::invalid_argument("a weight is smaller than its shape needs");
  if (reinterpret_cast<uintptr_t>(array.data()) % 64 != 0) throw std::invalid_argument("a weight is not 64-byte aligned");
  bound.weights.push_back(array);
  return array.data();
}

const float* keep_vector(BoundPlan& bound, const Bytes& array, int64_t width) {
  return reinterpret_cast<const float*>(keep(bound, array, width * 4));
}

void add_embed(BoundPlan& bound, Waits waits, int format, const Bytes& weight, int64_t vocab, int64_t width, float scale,
               Place out) {
  EmbedOp op;
  op.format = format_of(format);
  op.weight = keep(bound, weight, packed_bytes(op.format, vocab, width));
  op.vocab = vocab;
  op.width = width;
  op.scale = scale;
  op.out = view(out);
  add(bound, waits, std::move(op));
}

void add_norm(BoundPlan& bound, Waits waits, Place x, const Bytes& weight, float eps, int64_t width, int64_t head_dim,
              std::optional<Place> out, int32_t quantized) {
  NormOp op;
  op.x = view(x);
  op.weight = keep_vector(bound, weight, head_dim != 0 ? head_dim : width);
  op.eps = eps;
  op.width = width;
  op.head_dim = head_dim;
  op.out = view(out);
  op.quantized = quantized;
  add(bound, waits, std::move(op));
}

void add_quantize(BoundPlan& bound, Waits waits, Place x, int64_t width, int32_t quantized) {
  QuantizeOp op;
  op.x = view(x);
  op.width = width;
  op.quantized = quantized;
  add(bound, waits, std::move(op));
}

void add_act_mul(BoundPlan& bound, Waits waits, Place gate, Place up, int64_t width, int kind, std::optional<Place> out,
                 int32_t quantized) {
  ActMulOp op;
  op.gate = view(gate);
  op.up = view(up);
  op.width = width;
  op.kind = static_cast<Activation>(kind);
  op.out = view(out);
  op.quantized = quantized;
  add(bound, waits, std::move(op));
}

void add_linear(BoundPlan& bound, Waits waits, std::optional<Place> x, int32_t quantized, int64_t k, bool accumulate,
                const std::vector<SegmentSpec>& segments) {
  LinearOp op;
  op.x = view(x);
  op.quantized = quantized;
  op.k = k;
  op.accumulate = accumulate;
  for (const auto& [format, weight, bias, n, y] : segments) {
    LinearOp::Segment segment{};
    segment.format = format_of(format);
    segment.weight = keep(bound, weight, packed_bytes(segment.format, n, k));
    segment.bias = bias ? keep_vector(bound, *bias, n) : nullptr;
    segment.n = n;
    segment.y = view(y);
    op.num_tiles += (n + tile_channels - 1) / tile_channels;
    op.segments.push_back(segment);
  }
  add(bound, waits, std::move(op));
}

void add_rope_table(BoundPlan& bound, Waits waits, std::vector<double> inv_freq, double attention_factor, Place cos, Place sin) {
  RopeTableOp op;
  op.inv_freq = std::move(inv_freq);
  op.attention_factor = attention_factor;
  op.cos = view(cos);
  op.sin = view(sin);
  add(bound, waits, std::move(op));
}

void add_rope_store(BoundPlan& bound, Waits waits, Place q, Place k, Place v, std::optional<Place> cos, std::optional<Place> sin,
                    int32_t half, int32_t layer, int32_t num_heads) {
  RopeStoreOp op;
  op.q = view(q);
  op.k = view(k);
  op.v = view(v);
  op.cos = view(cos);
  op.sin = view(sin);
  op.half = half;
  op.num_heads = num_heads;
  op.kv = bound.get().layer(layer);
  add(bound, waits, std::move(op));
}

void add_attend(BoundPlan& bound, Waits waits, Place q, Place out, int32_t layer, int32_t num_heads, float scale, int32_t window,
                float softcap) {
  AttendOp op{};
  op.q = view(q);
  op.out = view(out);
  op.kv = bound.get().layer(layer);
  op.num_heads = num_heads;
  op.scale = scale;
  op.window = window;
  op.softcap = softcap;
  op.plan = bound.get().attention_plan({num_heads, op.kv.num_kv_heads, op.kv.head_dim, window});
  add(bound, waits, std::move(op));
}

void add_add(BoundPlan& bound, Waits waits, Place x, Place y, Place out, int64_t width) {
  AddOp op;
  op.x = view(x);
  op.y = view(y);
  op.out = view(out);
  op.width = width;
  add(bound, waits, std::move(op));
}

void add_softcap(BoundPlan& bound, Waits waits, Place x, Place out, int64_t width, float cap) {
  SoftcapOp op;
  op.x = view(x);
  op.out = view(out);
  op.width = width;
  op.cap = cap;
  add(bound, waits, std::move(op));
}

void add_gather(BoundPlan& bound, Waits waits, Place x, Place out, int64_t width) {
  GatherOp op;
  op.x = view(x);
  op.out = view(out);
  op.width = width;
  add(bound, waits, std::move(op));
}

void add_sample(BoundPlan& bound, Waits waits, Place logits, int64_t vocab) {
  SampleOp op{};
  op.logits = view(logits);
  op.vocab = vocab;
  add(bound, waits, std::move(op));
}

BoundPlan* make_plan(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvArena> kv, const std::string& tier,
                     int64_t max_step_tokens, int64_t max_num_seqs, int64_t max_model_len, int64_t vocab_size, int64_t tile_rows,
                     int64_t arena_bytes) {
  const PlanLimits limits{max_step_tokens, max_num_seqs, max_model_len, vocab_size, tile_rows, arena_bytes};
  auto plan = std::make_unique<Plan>(std::move(pool), std::move(kv), find_kernels(tier), limits);
  return new BoundPlan{std::move(plan), {}};
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def(
      "attention_partial_bytes",
      [](int32_t num_heads, int32_t head_dim, int32_t window, int64_t max_num_seqs, int64_t max_model_len, int num_threads) {
        PlanLimits limits{};
        limits.max_num_seqs = max_num_seqs;
        limits.max_model_len = max_model_len;
        return attention_partial_bytes({num_heads, 0, head_dim, window}, limits, num_threads);
      },
      nb::kw_only(), "num_heads"_a, "head_dim"_a, "window"_a, "max_num_seqs"_a, "max_model_len"_a, "num_threads"_a);

  nb::class_<BoundPlan> plan(m, "Plan");
  plan.def(nb::new_(&make_plan), nb::kw_only(), "pool"_a, "kv"_a, "tier"_a, "max_step_tokens"_a, "max_num_seqs"_a,
           "max_model_len"_a, "vocab_size"_a, "tile_rows"_a, "arena_bytes"_a)
      .def(
          "add_buffer",
          [](BoundPlan& bound, int64_t offset, int64_t width, int64_t private_stride) {
            return bound.get().add_buffer({offset, width, private_stride});
          },
          nb::kw_only(), "offset"_a, "width"_a, "private_stride"_a)
      .def("embed", &add_embed, "waits"_a, nb::kw_only(), "format"_a, "weight"_a, "vocab"_a, "width"_a, "scale"_a, "out"_a)
      .def("norm", &add_norm, "waits"_a, nb::kw_only(), "x"_a, "weight"_a, "eps"_a, "width"_a, "head_dim"_a, "out"_a.none(),
           "quantized"_a)
      .def("quantize", &add_quantize, "waits"_a, nb::kw_only(), "x"_a, "width"_a, "quantized"_a)
      .def("act_mul", &add_act_mul, "waits"_a, nb::kw_only(), "gate"_a, "up"_a, "width"_a, "kind"_a, "out"_a.none(),
           "quantized"_a)
      .def("linear", &add_linear, "waits"_a, nb::kw_only(), "x"_a.none(), "quantized"_a, "k"_a, "accumulate"_a, "segments"_a)
      .def("rope_table", &add_rope_table, "waits"_a, nb::kw_only(), "inv_freq"_a, "attention_factor"_a, "cos"_a, "sin"_a)
      .def("rope_store", &add_rope_store, "waits"_a, nb::kw_only(), "q"_a, "k"_a, "v"_a, "cos"_a.none(), "sin"_a.none(), "half"_a,
           "layer"_a, "num_heads"_a)
      .def("attend", &add_attend, "waits"_a, nb::kw_only(), "q"_a, "out"_a, "layer"_a, "num_heads"_a, "scale"_a, "window"_a,
           "softcap"_a)
      .def("add", &add_add, "waits"_a, nb::kw_only(), "x"_a, "y"_a, "out"_a, "width"_a)
      .def("softcap", &add_softcap, "waits"_a, nb::kw_only(), "x"_a, "out"_a, "width"_a, "cap"_a)
      .def("gather", &add_gather, "waits"_a, nb::kw_only(), "x"_a, "out"_a, "width"_a)
      .def("sample", &add_sample, "waits"_a, nb::kw_only(), "logits"_a, "vocab"_a)
      .def("release", [](BoundPlan& bound) {
        bound.plan.reset();
        bound.weights.clear();
      });
  bind_step(plan);
}

}  // namespace gm
