// Choosing tokens: the native form of src/gristmill/sampling/sampler.py, which is the definition.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gm {

struct SampleRow {
  float temperature;  // 0 = greedy
  int32_t top_k;      // 0 = no limit
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  uint32_t choice, position;
  const int32_t* bias_ids;
  const float* bias_values;
  int32_t num_bias;
  const int32_t* banned_ids;
  int32_t num_banned;
  const int32_t* history_ids;  // prompt first
  int32_t history_prompt_len, num_history;
  int32_t num_logprobs;  // -1 = none, k = the chosen token and the k most likely
};

struct SampleResult {
  int32_t token_id;
  bool is_finite;
  float logprob;
  int32_t* top_ids;     // [num_logprobs]
  float* top_logprobs;  // [num_logprobs]
};

struct SampleArgs {
  float* logits;  // [vocab], overwritten
  int64_t vocab;
  const SampleRow* row;
  SampleResult* result;
  void* scratch;  // sample_scratch_bytes(vocab), 64-byte aligned
};

}  // namespace gm
