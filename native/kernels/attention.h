// Rotary embedding, the KV pages and attention over them. Bit-exactness: every unit of 64 consecutive positions
// (aligned: 0..63, 64..127, ...) of one row and head gives its own (max, sum, output), and units are merged in
// ascending order, whoever computed them. So decode, prefill, chunk borders and thread counts give equal bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gm {

constexpr int page_tokens = 32;
constexpr int unit_tokens = 64;

// Where the pages of one layer lie. Blocks are grouped in slabs (committed as a whole); inside a slab the pages
// of one layer are contiguous: page(b) = pool + (b >> slab_shift) * slab_bytes + layer_offset + (b & mask) * page_bytes.
// A page holds, for each kv head in order, a K part then a V part, bf16:
//   K [head_dim/2][2 halves][16 tokens][2 d]      V [16 token pairs][head_dim][2 tokens]
struct KvView {
  uint8_t* pool;
  int64_t slab_bytes;
  int64_t layer_offset;
  int64_t page_bytes;
  int32_t slab_shift;
  int32_t num_kv_heads;
  int32_t head_dim;  // multiple of 16, <= 256
};

// cos and sin of this step's positions for one set of frequencies, times the attention factor.
struct RopeTable {
  const float* cos;  // [T, half]
  const float* sin;  // [T, half]
  int32_t half;      // rotated columns / 2; 0 = no rotation
};

struct RopeTableArgs {
  const int32_t* positions;  // [T]
  const double* inv_freq;    // [half]
  double attention_factor;
  int32_t half;
  float* cos;
  float* sin;
  int64_t token_begin, token_end;
};

// Rotates q in place, rotates k and stores k and v (rounded to bf16) into their pages.
struct RopeStoreArgs {
  float* q;        // [T, ldq]: num_heads * head_dim columns
  const float* k;  // [T, ldk]
  const float* v;  // [T, ldv]
  int64_t ldq, ldk, ldv;
  RopeTable rope;
  const int32_t* slot_mapping;  // [T] block * page_tokens + offset
  KvView kv;
  int32_t num_heads;
  int64_t unit_begin, unit_end;  // of T * (num_heads + num_kv_heads): per token first its q heads, then its kv heads
};

struct AttentionArgs {
  const float* q;  // [T, ldq], rotated
  int64_t ldq;
  float* out;  // [T, ldo]
  int64_t ldo;
  const int32_t* query_start;   // [S + 1]
  const int32_t* context_len;   // [S]
  const int32_t* block_tables;  // [S, block_table_stride]
  int64_t block_table_stride;
  KvView kv;
  int32_t num_heads;
  float scale;
  int32_t window;   // 0 = no limit
  float softcap;    // 0 = none
  float* partials;  // scratch of attention_partial_bytes
};

// One piece of attention work: rows [row_begin, row_end) of sequence s (token indices), kv heads [head_begin, head_end),
// units [unit_begin, unit_end). If partial_offset < 0 the item covers all units of its rows and writes `out`;
// else it leaves its units' (max, sum, output) in `partials` and a merge item writes `out`.
struct AttentionItem {
  int32_t sequence;
  int32_t row_begin, row_end;
  int32_t head_begin, head_end;
  int32_t unit_begin, unit_end;
  int64_t partial_offset;  // in floats, -1 = none
};

}  // namespace gm
