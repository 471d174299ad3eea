// Who computes which piece of attention in a step: planned once, used by all layers of a shape.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/attention.h"

namespace gm {

// Items that leave partial results come first: all pieces of one (sequence, kv head) in ascending order of units, one
// group after the other. A merge belongs to each group.
struct AttentionPlan {
  std::vector<AttentionItem> items;
  int64_t num_merges = 0;
  int64_t partial_floats = 0;
};

struct AttentionStep {
  const int32_t* query_start;  // [S + 1]
  const int32_t* context_len;  // [S]
  int64_t num_sequences;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t window;  // 0 = no limit
  int32_t num_threads;
};

// Fills `plan`, reusing its memory.
void plan_attention(const AttentionStep& step, AttentionPlan& plan);

}  // namespace gm
