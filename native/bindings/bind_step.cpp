#include <stdexcept>

#include "bound_plan.h"

namespace nb = nanobind;

namespace gm {
namespace {

template <class T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const char* name, const std::string& what) {
  throw std::invalid_argument("bad batch: " + std::string(name) + " " + what);
}

template <class T, int Dimensions>
Array<T, Dimensions> array_of(nb::handle value, const char* name) {
  Array<T, Dimensions> array;
  if (!nb::try_cast(value, array, false)) refuse(name, "has a wrong type, number of dimensions, or is not contiguous");
  return array;
}

// The caller's `batch` keeps the array alive, so the pointer outlives the handle made here.
template <class T>
const T* column(nb::handle object, const char* name, int64_t size) {
  const auto array = array_of<const T, 1>(object.attr(name), name);
  if (static_cast<int64_t>(array.size()) != size) refuse(name, "should have " + std::to_string(size) + " entries");
  return array.data();
}

template <class T>
const T* list(nb::handle object, const char* name, int64_t& size) {
  const auto array = array_of<const T, 1>(object.attr(name), name);
  size = static_cast<int64_t>(array.size());
  return array.data();
}

template <class T>
T* result_array(nb::handle value, const char* name, int64_t size) {
  const auto array = array_of<T, 1>(value, name);
  if (static_cast<int64_t>(array.size()) != size) refuse(name, "should have " + std::to_string(size) + " entries");
  return array.data();
}

template <class T>
T* result_matrix(nb::handle value, const char* name, int64_t rows, int64_t columns) {
  const auto array = array_of<T, 2>(value, name);
  if (static_cast<int64_t>(array.shape(0)) != rows || static_cast<int64_t>(array.shape(1)) != columns)
    refuse(name, "has a wrong shape");
  return array.data();
}

nb::object only_group(nb::handle batch, const char* name) {
  const nb::object groups = batch.attr(name);
  if (nb::len(groups) != 1) refuse(name, "should have one KV group");
  return groups[0];
}

SamplingColumns read_sampling(nb::handle columns, int64_t num_rows) {
  SamplingColumns c{};
  c.temperature = column<float>(columns, "temperature", num_rows);
  c.top_k = column<int32_t>(columns, "top_k", num_rows);
  c.top_p = column<float>(columns, "top_p", num_rows);
  c.min_p = column<float>(columns, "min_p", num_rows);
  c.repetition_penalty = column<float>(columns, "repetition_penalty", num_rows);
  c.presence_penalty = column<float>(columns, "presence_penalty", num_rows);
  c.frequency_penalty = column<float>(columns, "frequency_penalty", num_rows);
  c.seed = column<uint64_t>(columns, "seed", num_rows);
  c.choice = column<uint32_t>(columns, "choice", num_rows);
  c.position = column<uint32_t>(columns, "position", num_rows);
  c.bias_start = column<int32_t>(columns, "bias_start", num_rows + 1);
  c.bias_ids = list<int32_t>(columns, "bias_ids", c.num_bias);
  c.bias_values = column<float>(columns, "bias_values", c.num_bias);
  c.banned_start = column<int32_t>(columns, "banned_start", num_rows + 1);
  c.banned_ids = list<int32_t>(columns, "banned_ids", c.num_banned);
  c.history_start = column<int32_t>(columns, "history_start", num_rows + 1);
  c.history_prompt_len = column<int32_t>(columns, "history_prompt_len", num_rows);
  c.history_ids = list<int32_t>(columns, "history_ids", c.num_history);
  c.num_logprobs = column<int32_t>(columns, "num_logprobs", num_rows);
  return c;
}

StepInput read_batch(nb::handle batch) {
  StepInput input{};
  input.token_ids = list<int32_t>(batch, "token_ids", input.num_tokens);
  input.context_len = list<int32_t>(batch, "context_len", input.num_sequences);
  input.logits_rows = list<int32_t>(batch, "logits_rows", input.num_logits_rows);
  input.query_start = column<int32_t>(batch, "query_start", input.num_sequences + 1);
  const auto positions = array_of<const int32_t, 2>(batch.attr("positions"), "positions");
  if (positions.shape(0) < 1 || static_cast<int64_t>(positions.shape(1)) != input.num_tokens)
    refuse("positions", "has a wrong shape");
  input.positions = positions.data();
  const auto slots = array_of<const int32_t, 1>(only_group(batch, "slot_mapping"), "slot_mapping");
  if (static_cast<int64_t>(slots.size()) != input.num_tokens) refuse("slot_mapping", "has a wrong length");
  input.slot_mapping = slots.data();
  const auto tables = array_of<const int32_t, 2>(only_group(batch, "block_tables"), "block_tables");
  if (static_cast<int64_t>(tables.shape(0)) != input.num_sequences) refuse("block_tables", "has a wrong shape");
  input.block_tables = tables.data();
  input.block_table_stride = static_cast<int64_t>(tables.shape(1));
  input.sampling = read_sampling(batch.attr("sampling"), input.num_logits_rows);
  return input;
}

// Runs a step over a gristmill.backends.base.Batch and fills the result arrays; returns nanoseconds.
int64_t step(BoundPlan& bound, nb::handle batch, nb::handle token_ids, nb::handle is_finite, nb::handle logprobs,
             nb::handle top_ids, nb::handle top_logprobs) {
  Plan& plan = bound.get();
  const StepInput input = read_batch(batch);
  const int64_t num_rows = input.num_logits_rows;
  StepResult result{};
  result.token_ids = result_array<int32_t>(token_ids, "result token_ids", num_rows);
  result.is_finite = result_array<bool>(is_finite, "result is_finite", num_rows);
  result.logprobs = result_array<float>(logprobs, "result logprobs", num_rows);
  result.num_top = static_cast<int64_t>(array_of<int32_t, 2>(top_ids, "result top_ids").shape(1));
  result.top_ids = result_matrix<int32_t>(top_ids, "result top_ids", num_rows, result.num_top);
  result.top_logprobs = result_matrix<float>(top_logprobs, "result top_logprobs", num_rows, result.num_top);
  const nb::gil_scoped_release release;
  plan.step(input, result);
  return result.device_ns;
}

}  // namespace

void bind_step(nb::handle plan) {
  auto type = nb::borrow<nb::class_<BoundPlan>>(plan);
  type.def("step", &step, nb::arg("batch"), nb::kw_only(), nb::arg("token_ids"), nb::arg("is_finite"), nb::arg("logprobs"),
           nb::arg("top_ids"), nb::arg("top_logprobs"));
}

}  // namespace gm
