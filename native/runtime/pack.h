// Published weights into the execution formats and their one layout, B32 (src/gristmill/quant/formats.py). A call packs
// a range of column tiles, so that a thread pool may share one matrix; it reads the source in place, unaligned.
#pragma once
#include <cstdint>

#include "../kernels/formats.h"

namespace gm {

// The numbers are GGUF's.
enum class BlockType : int32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  bf16 = 30,
};

bool is_block_type(int32_t number);
Format packed_format(BlockType type);
int64_t block_width(BlockType type);           // weights of one published block; k is a multiple of it
int64_t row_bytes(BlockType type, int64_t k);  // of one published row
int64_t packed_bytes(Format format, int64_t n, int64_t k);

struct PublishedMatrix {
  BlockType type;
  const uint8_t* data;     // rows of row_bytes(type, k)
  const int64_t* row_ids;  // [n] which row of `data` is output channel i, or null: row i
  int64_t n, k;            // k a multiple of 32 if the packed format is quantized
};

// Packs column tiles [tile_begin, tile_end) into `packed`, the whole matrix of packed_bytes. Padding channels are zero.
// Returns how many scales and minimums fp16 could not hold to its full precision (products of k-quants that are
// subnormal and not exact, or that overflow): 0 means that every group keeps the bound of its format.
int64_t pack_published(const PublishedMatrix& matrix, uint8_t* packed, int64_t tile_begin, int64_t tile_end);

}  // namespace gm
