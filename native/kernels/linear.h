// Row-wise kernels around the matrix product: quantize, norm, activation, embedding, linear.
// Every function computes rows independently of each other and of how work is split over threads:
// the bits of a row depend on that row alone.
#pragma once
#include "formats.h"

namespace gm {

enum class Activation : int32_t { silu = 0, gelu_tanh = 1, gelu = 2 };

// Rows of activations as int8, one scale per 32 columns, with the sums that minimums and zero points need.
// The inside of the buffer is the linear kernels' own affair; `quantized_bytes(m, k)` says how large it is.
// k is a multiple of 32; the buffer is 64-byte aligned. Row r's content depends on row r alone.

struct LinearArgs {
  const uint8_t* weight;  // packed B32 of `format`, 64-byte aligned
  int64_t n;              // output channels; the last tile may be partly padding, which is never written
  int64_t k;
  const void* x;  // quantized formats: a quantized buffer of num_rows rows; float formats: float [num_rows, ldx]
  int64_t ldx;    // in floats; float formats only
  int64_t num_rows;
  float* y;  // [num_rows, ldy]
  int64_t ldy;
  const float* bias;   // [n] or null
  bool accumulate;     // true: y += (residual), false: y =
  int64_t tile_begin;  // column tiles of 32 channels: [tile_begin, tile_end)
  int64_t tile_end;
};
using LinearFn = void (*)(const LinearArgs&);

struct NormArgs {
  const float* x;  // [num_rows, ldx]
  int64_t ldx;
  const float* weight;  // [head_dim ? head_dim : width]
  float eps;
  int64_t width;
  int64_t head_dim;  // 0 = the whole row; else each run of head_dim columns on its own
  float* out;        // [num_rows, ldo], may be x itself, or null
  int64_t ldo;
  void* quantized;   // quantized buffer (of all rows of the matrix), or null: also quantize the result
  int64_t num_rows;  // rows of the whole matrix (the quantized buffer's layout needs it)
  int64_t row_begin, row_end;
};

struct ActMulArgs {
  const float* gate;  // [num_rows, ld]
  const float* up;    // [num_rows, ld]
  int64_t ld;
  int64_t width;  // multiple of 32 if quantized
  Activation kind;
  float* out;  // [num_rows, ldo] or null
  int64_t ldo;
  void* quantized;   // quantized buffer or null
  int64_t num_rows;  // rows of the whole matrix (the quantized buffer's layout needs it)
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;  // multiples of 32 (or width): lets one row be split over threads
};

struct QuantizeArgs {
  const float* x;  // [num_rows, ldx]
  int64_t ldx;
  int64_t width;  // multiple of 32
  void* quantized;
  int64_t num_rows;
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;  // multiples of 32
};

struct EmbedArgs {
  Format format;
  const uint8_t* weight;  // packed B32 [vocab, width]
  int64_t vocab, width;
  const int32_t* token_ids;
  float scale;
  float* out;  // [num_rows, width]
  int64_t row_begin, row_end;
};

}  // namespace gm
