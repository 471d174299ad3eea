#include "step.h"

#include <stdexcept>
#include <string>

#include "../kernels/attention.h"

namespace gm {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("bad batch: " + what); }

void check_range(const char* name, int64_t index, int64_t value, int64_t begin, int64_t end) {
  if (value >= begin && value < end) return;
  refuse(std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) + ", not in [" +
         std::to_string(begin) + ", " + std::to_string(end) + ")");
}

void check_all(const char* name, const int32_t* values, int64_t count, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < count; ++i) check_range(name, i, values[i], begin, end);
}

// Starts of a list of lists: from 0, ascending, ending at `total`.
void check_starts(const char* name, const int32_t* starts, int64_t count, int64_t total) {
  if (starts[0] != 0 || starts[count] != total) refuse(std::string(name) + " does not span 0.." + std::to_string(total));
  for (int64_t i = 0; i < count; ++i) {
    if (starts[i] > starts[i + 1]) refuse(std::string(name) + " descends at " + std::to_string(i));
  }
}

void check_counts(const StepInput& input, const StepLimits& limits) {
  check_range("num_tokens", 0, input.num_tokens, 1, limits.max_step_tokens + 1);
  check_range("num_sequences", 0, input.num_sequences, 1, limits.max_num_seqs + 1);
  check_range("num_logits_rows", 0, input.num_logits_rows, 0, input.num_tokens + 1);
}

void check_sequences(const StepInput& input, const StepLimits& limits) {
  check_starts("query_start", input.query_start, input.num_sequences, input.num_tokens);
  for (int64_t s = 0; s < input.num_sequences; ++s) {
    const int64_t query_len = input.query_start[s + 1] - input.query_start[s];
    const int64_t context_len = input.context_len[s];
    check_range("query_len", s, query_len, 1, limits.max_step_tokens + 1);
    check_range("context_len", s, context_len, query_len, limits.max_model_len + 1);
    const int64_t num_blocks = (context_len + page_tokens - 1) / page_tokens;
    if (num_blocks > input.block_table_stride) refuse("block_tables is too narrow for context_len[" + std::to_string(s) + "]");
    check_all("block_tables", input.block_tables + s * input.block_table_stride, num_blocks, 0, limits.num_committed_blocks);
  }
}

void check_rows(const StepInput& input, const StepLimits& limits) {
  const SamplingColumns& columns = input.sampling;
  const int64_t num_rows = input.num_logits_rows;
  check_all("logits_rows", input.logits_rows, num_rows, 0, input.num_tokens);
  check_starts("bias_start", columns.bias_start, num_rows, columns.num_bias);
  check_starts("banned_start", columns.banned_start, num_rows, columns.num_banned);
  check_starts("history_start", columns.history_start, num_rows, columns.num_history);
  check_all("bias_ids", columns.bias_ids, columns.num_bias, 0, limits.vocab_size);
  check_all("banned_ids", columns.banned_ids, columns.num_banned, 0, limits.vocab_size);
  check_all("history_ids", columns.history_ids, columns.num_history, 0, limits.vocab_size);
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t history_len = columns.history_start[r + 1] - columns.history_start[r];
    if (history_len > 0) check_range("history_prompt_len", r, columns.history_prompt_len[r], 0, history_len + 1);
    check_range("num_logprobs", r, columns.num_logprobs[r], -1, limits.vocab_size + 1);
  }
}

}  // namespace

void check_step(const StepInput& input, const StepLimits& limits) {
  check_counts(input, limits);
  check_all("token_ids", input.token_ids, input.num_tokens, 0, limits.vocab_size);
  check_all("positions", input.positions, input.num_tokens, 0, limits.max_model_len);
  check_all("slot_mapping", input.slot_mapping, input.num_tokens, 0, limits.num_committed_blocks * page_tokens);
  check_sequences(input, limits);
  check_rows(input, limits);
}

SampleRow sample_row(const SamplingColumns& columns, int64_t r) {
  SampleRow row{};
  row.temperature = columns.temperature[r];
  row.top_k = columns.top_k[r];
  row.top_p = columns.top_p[r];
  row.min_p = columns.min_p[r];
  row.repetition_penalty = columns.repetition_penalty[r];
  row.presence_penalty = columns.presence_penalty[r];
  row.frequency_penalty = columns.frequency_penalty[r];
  row.seed = columns.seed[r];
  row.choice = columns.choice[r];
  row.position = columns.position[r];
  row.bias_ids = columns.bias_ids + columns.bias_start[r];
  row.bias_values = columns.bias_values + columns.bias_start[r];
  row.num_bias = columns.bias_start[r + 1] - columns.bias_start[r];
  row.banned_ids = columns.banned_ids + columns.banned_start[r];
  row.num_banned = columns.banned_start[r + 1] - columns.banned_start[r];
  row.history_ids = columns.history_ids + columns.history_start[r];
  row.history_prompt_len = columns.history_prompt_len[r];
  row.num_history = columns.history_start[r + 1] - columns.history_start[r];
  row.num_logprobs = columns.num_logprobs[r];
  return row;
}

}  // namespace gm
