// One step's arrays, as src/gristmill/backends/base.py defines them; the caller owns the memory.
#pragma once
#include <cstdint>

#include "../kernels/sample.h"

namespace gm {

struct SamplingColumns {
  const float* temperature;  // [R], as all without a note
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const uint64_t* seed;
  const uint32_t* choice;
  const uint32_t* position;
  const int32_t* bias_start;  // [R + 1]
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* banned_start;  // [R + 1]
  const int32_t* banned_ids;
  const int32_t* history_start;  // [R + 1]
  const int32_t* history_prompt_len;
  const int32_t* history_ids;
  const int32_t* num_logprobs;
  int64_t num_bias, num_banned, num_history;  // lengths of the lists
};

struct StepInput {
  int64_t num_tokens;           // T
  int64_t num_sequences;        // S
  int64_t num_logits_rows;      // R
  int64_t block_table_stride;   // B
  const int32_t* token_ids;     // [T]
  const int32_t* positions;     // [T]
  const int32_t* query_start;   // [S + 1]
  const int32_t* context_len;   // [S]
  const int32_t* slot_mapping;  // [T]
  const int32_t* block_tables;  // [S, B]
  const int32_t* logits_rows;   // [R]
  SamplingColumns sampling;
};

struct StepResult {
  int64_t num_top;      // K
  int32_t* token_ids;   // [R]
  bool* is_finite;      // [R]
  float* logprobs;      // [R]
  int32_t* top_ids;     // [R, K]
  float* top_logprobs;  // [R, K]
  int64_t device_ns;
};

// What a plan was made for; a step beyond it is refused.
struct StepLimits {
  int64_t max_step_tokens;
  int64_t max_num_seqs;
  int64_t max_model_len;
  int64_t vocab_size;
  int64_t num_committed_blocks;  // at the time of the step
};

// Throws std::invalid_argument that names the array if anything would lead outside of memory.
void check_step(const StepInput& input, const StepLimits& limits);

// Row r's options, with pointers into the columns.
SampleRow sample_row(const SamplingColumns& columns, int64_t r);

}  // namespace gm
