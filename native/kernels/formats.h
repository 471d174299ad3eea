// Execution formats; the numbers and the layout "B32" are those of src/gristmill/quant/formats.py.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gm {

enum class Format : int32_t {
  q4_g32 = 0,
  q4_g32_min = 1,
  q4_g16 = 2,
  q4_g16_min = 3,
  q8_g32 = 4,
  q8_g32_min = 5,
  q8_g16 = 6,
  f16 = 7,
  bf16 = 8,
  f32 = 9,
};
constexpr int num_formats = 10;
constexpr int tile_channels = 32;
constexpr int block_k = 32;

constexpr bool is_quantized(Format f) { return static_cast<int32_t>(f) <= 6; }

}  // namespace gm
