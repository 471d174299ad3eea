#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "bound_plan.h"

namespace nb = nanobind;

namespace gm {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& what) {
  throw std::invalid_argument("bad batch: " + std::string(name) + " " + what);
}

template <class T>
bool is_format(const char* format) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return false;
  if (std::is_same_v<T, bool>) return *format == '?';
  return std::strchr(std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "ilq" : "ILQ", *format) != nullptr;
}

template <class T>
struct Array {
  T* data;
  int64_t shape[2];
};

// Through the buffer protocol, which takes less than nanobind's ndarray: a step reads thirty of these (docs/log.md). The
// buffer is given back at once; the caller's `batch` keeps the array alive during the step.
template <class T>
Array<T> array_of(nb::handle value, const char* name, int num_dimensions) {
  Py_buffer buffer;
  const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
  const bool is_buffer = PyObject_GetBuffer(value.ptr(), &buffer, flags) == 0;
  if (!is_buffer) PyErr_Clear();
  Array<T> array{};
  bool fits = is_buffer && buffer.ndim == num_dimensions && buffer.itemsize == sizeof(T) &&
              is_format<std::remove_const_t<T>>(buffer.format);
  if (fits) {
    array = {static_cast<T*>(buffer.buf), {buffer.shape[0], num_dimensions > 1 ? buffer.shape[1] : 1}};
  }
  if (is_buffer) PyBuffer_Release(&buffer);
  if (!fits) refuse(name, "has a wrong type, number of dimensions, or is not contiguous");
  return array;
}

template <class T>
T* sized(nb::handle value, const char* name, int64_t size) {
  const Array<T> array = array_of<T>(value, name, 1);
  if (array.shape[0] != size) refuse(name, "should have " + std::to_string(size) + " entries");
  return array.data;
}

template <class T>
const T* column(nb::handle object, const char* name, int64_t size) {
  return sized<const T>(object.attr(name), name, size);
}

template <class T>
const T* list(nb::handle object, const char* name, int64_t& size) {
  const Array<const T> array = array_of<const T>(object.attr(name), name, 1);
  size = array.shape[0];
  return array.data;
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
  const auto positions = array_of<const int32_t>(batch.attr("positions"), "positions", 2);
  if (positions.shape[0] < 1 || positions.shape[1] != input.num_tokens) refuse("positions", "has a wrong shape");
  input.positions = positions.data;
  const nb::object slots = only_group(batch, "slot_mapping");
  input.slot_mapping = sized<const int32_t>(slots, "slot_mapping", input.num_tokens);
  const nb::object table = only_group(batch, "block_tables");
  const auto tables = array_of<const int32_t>(table, "block_tables", 2);
  if (tables.shape[0] != input.num_sequences) refuse("block_tables", "has a wrong shape");
  input.block_tables = tables.data;
  input.block_table_stride = tables.shape[1];
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
  result.token_ids = sized<int32_t>(token_ids, "result token_ids", num_rows);
  result.is_finite = sized<bool>(is_finite, "result is_finite", num_rows);
  result.logprobs = sized<float>(logprobs, "result logprobs", num_rows);
  const auto top = array_of<int32_t>(top_ids, "result top_ids", 2);
  const auto top_values = array_of<float>(top_logprobs, "result top_logprobs", 2);
  if (top.shape[0] != num_rows || top_values.shape[0] != num_rows || top.shape[1] != top_values.shape[1]) {
    refuse("result top_ids", "has a wrong shape");
  }
  result.num_top = top.shape[1];
  result.top_ids = top.data;
  result.top_logprobs = top_values.data;
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
