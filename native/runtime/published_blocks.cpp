#include "published_blocks.h"

#include <cstring>

namespace gm {
namespace {

uint16_t read_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return float_of(bits_of(float_of(magnitude << 13) * 0x1p112f) | sign);
}

// Nearest even, subnormals included.
uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  // Below 2^-14 halves are multiples of 2^-24: adding 0.5 lets the addition itself round to one.
  if (magnitude < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

// A product of scales as fp16; one that falls out of fp16's normal range and is not exact there is counted.
uint16_t product_as_half(float product, GroupedRow& row) {
  const uint16_t half = float_to_half(product);
  const float magnitude = product < 0 ? -product : product;
  if ((magnitude < 0x1p-14f || magnitude > 65504.0f) && half_to_float(half) != product) ++row.num_inexact;
  return half;
}

// Published blocks of 32: a scale, perhaps a minimum, then codes.
void decode_q4(const uint8_t* p, bool with_min, int64_t b, GroupedRow& row) {
  row.scales[b] = read_half(p);
  if (with_min) row.mins[b] = read_half(p + 2);
  const uint8_t* nibbles = p + (with_min ? 4 : 2);
  uint8_t* codes = row.codes.data() + 32 * b;
  for (int i = 0; i < 16; ++i) {
    codes[i] = nibbles[i] & 15;
    codes[i + 16] = nibbles[i] >> 4;
  }
}

// Codes of 0..31 around 16 (Q5_0), or from the minimum (Q5_1); 128 is our zero.
void decode_q5(const uint8_t* p, bool with_min, int64_t b, GroupedRow& row) {
  row.scales[b] = read_half(p);
  if (with_min) row.mins[b] = read_half(p + 2);
  const uint8_t* high = p + (with_min ? 4 : 2);
  const uint8_t* nibbles = high + 4;
  const int zero = with_min ? 128 : 112;
  uint8_t* codes = row.codes.data() + 32 * b;
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>(((nibbles[i] & 15) | (high[i / 8] >> (i % 8) & 1) << 4) + zero);
    codes[i + 16] = static_cast<uint8_t>((nibbles[i] >> 4 | (high[i / 8 + 2] >> (i % 8) & 1) << 4) + zero);
  }
}

void decode_q8_0(const uint8_t* p, int64_t b, GroupedRow& row) {
  row.scales[b] = read_half(p);
  uint8_t* codes = row.codes.data() + 32 * b;
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80u);
}

void decode_iq4_nl(const uint8_t* p, int64_t b, GroupedRow& row) {
  static constexpr int values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  row.scales[b] = read_half(p);
  uint8_t* codes = row.codes.data() + 32 * b;
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>(values[p[2 + i] & 15] + 128);
    codes[i + 16] = static_cast<uint8_t>(values[p[2 + i] >> 4] + 128);
  }
}

// Super-blocks of 256: scales of 16 or 32 weights in few bits, times one fp16.
void decode_q2_k(const uint8_t* p, int64_t b, GroupedRow& row) {
  const uint8_t* quarters = p + 16;
  const float d = half_to_float(read_half(p + 80)), dmin = half_to_float(read_half(p + 82));
  for (int g = 0; g < 16; ++g) {
    row.scales[16 * b + g] = product_as_half(d * static_cast<float>(p[g] & 15), row);
    row.mins[16 * b + g] = product_as_half(-(dmin * static_cast<float>(p[g] >> 4)), row);
  }
  uint8_t* codes = row.codes.data() + 256 * b;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) codes[32 * j + i] = quarters[j / 4 * 32 + i] >> (j % 4 * 2) & 3;
  }
}

void decode_q3_k(const uint8_t* p, int64_t b, GroupedRow& row) {
  const uint8_t *high = p, *quarters = p + 32, *packed = p + 96;
  const float d = half_to_float(read_half(p + 108));
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int scale = (low | (packed[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
    row.scales[16 * b + g] = product_as_half(d * static_cast<float>(scale), row);
  }
  uint8_t* codes = row.codes.data() + 256 * b;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int low = quarters[j / 4 * 32 + i] >> (j % 4 * 2) & 3;
      codes[32 * j + i] = static_cast<uint8_t>((low | (high[i] >> j & 1) << 2) + 4);  // they count from 4, we from 8
    }
  }
}

// The eight 6-bit scales and minimums of Q4_K and Q5_K, at p + 4.
void decode_k_scales(const uint8_t* p, int64_t b, GroupedRow& row) {
  const float d = half_to_float(read_half(p)), dmin = half_to_float(read_half(p + 2));
  const uint8_t* packed = p + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    const int minimum = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    row.scales[8 * b + g] = product_as_half(d * static_cast<float>(scale), row);
    row.mins[8 * b + g] = product_as_half(-(dmin * static_cast<float>(minimum)), row);
  }
}

void decode_q4_k(const uint8_t* p, int64_t b, GroupedRow& row) {
  decode_k_scales(p, b, row);
  const uint8_t* nibbles = p + 16;
  uint8_t* codes = row.codes.data() + 256 * b;
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 32; ++i) {
      codes[64 * j + i] = nibbles[32 * j + i] & 15;
      codes[64 * j + 32 + i] = nibbles[32 * j + i] >> 4;
    }
  }
}

void decode_q5_k(const uint8_t* p, int64_t b, GroupedRow& row) {
  decode_k_scales(p, b, row);
  const uint8_t *high = p + 16, *nibbles = p + 48;
  uint8_t* codes = row.codes.data() + 256 * b;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      const int low = nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
      codes[32 * j + i] = static_cast<uint8_t>((low | (high[i] >> j & 1) << 4) + 128);
    }
  }
}

void decode_q6_k(const uint8_t* p, int64_t b, GroupedRow& row) {
  const uint8_t *nibbles = p, *high = p + 128;
  const float d = half_to_float(read_half(p + 208));
  for (int g = 0; g < 16; ++g) {
    row.scales[16 * b + g] = product_as_half(d * static_cast<float>(static_cast<int8_t>(p[192 + g])), row);
  }
  uint8_t* codes = row.codes.data() + 256 * b;
  for (int j = 0; j < 8; ++j) {
    const uint8_t *low = nibbles + j / 4 * 64 + j % 2 * 32, *top = high + j / 4 * 32;
    const int low_shift = j % 4 / 2 * 4, top_shift = j % 4 * 2;
    for (int i = 0; i < 32; ++i) {
      codes[32 * j + i] = static_cast<uint8_t>(((low[i] >> low_shift & 15) | (top[i] >> top_shift & 3) << 4) + 96);
    }
  }
}

void decode_block(BlockType type, const uint8_t* p, int64_t b, GroupedRow& row) {
  switch (type) {
    case BlockType::q4_0: return decode_q4(p, false, b, row);
    case BlockType::q4_1: return decode_q4(p, true, b, row);
    case BlockType::q5_0: return decode_q5(p, false, b, row);
    case BlockType::q5_1: return decode_q5(p, true, b, row);
    case BlockType::q8_0: return decode_q8_0(p, b, row);
    case BlockType::q2_k: return decode_q2_k(p, b, row);
    case BlockType::q3_k: return decode_q3_k(p, b, row);
    case BlockType::q4_k: return decode_q4_k(p, b, row);
    case BlockType::q5_k: return decode_q5_k(p, b, row);
    case BlockType::q6_k: return decode_q6_k(p, b, row);
    case BlockType::iq4_nl: return decode_iq4_nl(p, b, row);
    case BlockType::f32:
    case BlockType::f16:
    case BlockType::bf16: return;
  }
}

}  // namespace

int group_size(Format format) {
  return format == Format::q4_g16 || format == Format::q4_g16_min || format == Format::q8_g16 ? 16 : 32;
}

bool has_min(Format format) {
  return format == Format::q4_g32_min || format == Format::q4_g16_min || format == Format::q8_g32_min;
}

void decode_row(BlockType type, const uint8_t* source, int64_t k, GroupedRow& row) {
  const auto num_groups = static_cast<size_t>(k / group_size(packed_format(type)));
  row.codes.resize(static_cast<size_t>(k));
  row.scales.resize(num_groups);
  row.mins.resize(num_groups);
  const int64_t width = block_width(type), bytes = row_bytes(type, width);
  for (int64_t b = 0; b < k / width; ++b) decode_block(type, source + b * bytes, b, row);
}

}  // namespace gm
