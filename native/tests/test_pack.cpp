// Published blocks packed into B32, read back through `embed` and compared with their published definition in double.
// The definition here goes by single weights; the packers go by blocks.
#include "../runtime/pack.h"

#include <cstring>
#include <string>

#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

double half_at(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31;
  const double size = exponent ? std::ldexp(1024 + (bits & 1023), exponent - 25) : std::ldexp(bits & 1023, -24);
  return bits & 0x8000 ? -size : size;
}

// Scale and minimum j of Q4_K and Q5_K.
void k_scales(const uint8_t* p, int j, double& scale, double& minimum) {
  const uint8_t* s = p + 4;
  const int low = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
  const int high = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
  scale = half_at(p) * low;
  minimum = half_at(p + 2) * high;
}

int q3_scale(const uint8_t* s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return (low | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

int nibble(const uint8_t* p, int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

// Weight i of one published block, as its format defines it.
double published_value(BlockType type, const uint8_t* p, int i) {
  static constexpr int nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
  double scale = 0, minimum = 0;
  switch (type) {
    case BlockType::q4_0: return half_at(p) * (nibble(p + 2, i) - 8);
    case BlockType::q4_1: return half_at(p) * nibble(p + 4, i) + half_at(p + 2);
    case BlockType::q5_0: return half_at(p) * ((nibble(p + 6, i) | (p[2 + i / 8] >> i % 8 & 1) << 4) - 16);
    case BlockType::q5_1: return half_at(p) * (nibble(p + 8, i) | (p[4 + i / 8] >> i % 8 & 1) << 4) + half_at(p + 2);
    case BlockType::q8_0: return half_at(p) * static_cast<int8_t>(p[2 + i]);
    case BlockType::iq4_nl: return half_at(p) * nonlinear[nibble(p + 2, i)];
    case BlockType::q2_k:
      return half_at(p + 80) * (p[i / 16] & 15) * (p[16 + half * 32 + l] >> 2 * quarter & 3) - half_at(p + 82) * (p[i / 16] >> 4);
    case BlockType::q3_k: {
      const int code = (p[32 + half * 32 + l] >> 2 * quarter & 3) - (p[l] >> (4 * half + quarter) & 1 ? 0 : 4);
      return half_at(p + 108) * q3_scale(p + 96, i / 16) * code;
    }
    case BlockType::q4_k:
      k_scales(p, i / 32, scale, minimum);
      return scale * (p[16 + i / 64 * 32 + l] >> i / 32 % 2 * 4 & 15) - minimum;
    case BlockType::q5_k:
      k_scales(p, i / 32, scale, minimum);
      return scale * ((p[48 + i / 64 * 32 + l] >> i / 32 % 2 * 4 & 15) | (p[16 + l] >> i / 32 & 1) << 4) - minimum;
    case BlockType::q6_k: {
      const int low = p[half * 64 + quarter % 2 * 32 + l] >> quarter / 2 * 4 & 15;
      const int code = (low | (p[128 + half * 32 + l] >> 2 * quarter & 3) << 4) - 32;
      return half_at(p + 208) * static_cast<int8_t>(p[192 + i / 16]) * code;
    }
    case BlockType::f16: return half_at(p);
    case BlockType::f32: {
      float value;
      std::memcpy(&value, p, 4);
      return value;
    }
    case BlockType::bf16: {
      const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
  }
  return 0;
}

// The fp16 fields of a block, which random bytes must not fill.
std::vector<int> half_offsets(BlockType type) {
  switch (type) {
    case BlockType::q4_1:
    case BlockType::q5_1:
    case BlockType::q4_k:
    case BlockType::q5_k: return {0, 2};
    case BlockType::q2_k: return {80, 82};
    case BlockType::q3_k: return {108};
    case BlockType::q6_k: return {208};
    default: return {0};
  }
}

void put_half(uint8_t* p, int exponent, uint32_t fraction) {
  p[0] = static_cast<uint8_t>(fraction);
  p[1] = static_cast<uint8_t>(exponent << 2 | (fraction >> 8 & 3));
}

std::vector<uint8_t> random_blocks(BlockType type, int64_t n, int64_t k, Random& random) {
  std::vector<uint8_t> data(n * row_bytes(type, k));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  const int64_t bytes = row_bytes(type, block_width(type));
  for (size_t b = 0; b < data.size(); b += bytes) {
    if (type == BlockType::f32 || type == BlockType::bf16) data[b + bytes - 1] = random.next() & 1 ? 0x3e : 0xbe;
    else
      for (const int offset : half_offsets(type)) put_half(&data[b + offset], 8 + random.next() % 5, random.next());
  }
  return data;
}

void check_type(BlockType type) {
  const int64_t n = 70, k = 512, width = block_width(type);
  Random random(static_cast<uint64_t>(type) + 1);
  const std::vector<uint8_t> data = random_blocks(type, n, k, random);
  std::vector<int64_t> row_ids(n);
  for (int64_t i = 0; i < n; ++i) row_ids[i] = (i * 37 + 5) % n;
  const Format format = packed_format(type);
  Aligned<uint8_t> packed(packed_bytes(format, n, k));
  std::memset(packed.data, 0xee, packed.size);
  const PublishedMatrix matrix{type, data.data(), row_ids.data(), n, k};
  int64_t num_inexact = 0;
  for (int64_t t = 2; t >= 0; --t) num_inexact += pack_published(matrix, packed.data, t, t + 1);
  const std::string name = "type " + std::to_string(static_cast<int>(type));
  check(num_inexact == 0, (name + ": every scale fits").c_str());
  std::vector<int32_t> ids(n);
  for (int32_t i = 0; i < n; ++i) ids[i] = i;
  std::vector<float> values(n * k);
  kernels_portable()->embed({format, packed.data, n, k, ids.data(), 1.0f, values.data(), 0, n});
  double worst = 0, largest = 0;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const uint8_t* block = &data[row_ids[r] * row_bytes(type, k) + row_bytes(type, width) * (i / width)];
      const double value = published_value(type, block, static_cast<int>(i % width));
      worst = std::fmax(worst, std::fabs(values[r * k + i] - value));
      largest = std::fmax(largest, std::fabs(value));
    }
  }
  // Products of scales are rounded to fp16: half a unit in 11 bits of a scale, and of a minimum.
  const bool has_products = width == 256;
  check(worst <= largest * (has_products ? 2 * 0x1p-11 : 0x1p-23), (name + ": values").c_str());
  for (const Kernels* kernels : tiers()) {
    std::vector<float> others(n * k);
    kernels->embed({format, packed.data, n, k, ids.data(), 1.0f, others.data(), 0, n});
    check(others == values, (name + ": embed in tier " + kernels->tier).c_str());
  }
}

void check_inexact_scales() {
  std::vector<uint8_t> block(row_bytes(BlockType::q6_k, 256), 0);
  put_half(&block[208], 1, 1);  // 2^-14 * (1 + 2^-10)
  for (int g = 0; g < 16; ++g) block[192 + g] = 1;
  Aligned<uint8_t> packed(packed_bytes(Format::q8_g16, 1, 256));
  check(pack_published({BlockType::q6_k, block.data(), nullptr, 1, 256}, packed.data, 0, 1) == 0,
        "a normal product is exact enough");
  put_half(&block[208], 0, 513);  // subnormal, but exactly what fp16 holds
  check(pack_published({BlockType::q6_k, block.data(), nullptr, 1, 256}, packed.data, 0, 1) == 0,
        "an exact subnormal is not counted");
  put_half(&block[208], 30, 1023);
  for (int g = 0; g < 16; ++g) block[192 + g] = 2;
  check(pack_published({BlockType::q6_k, block.data(), nullptr, 1, 256}, packed.data, 0, 1) == 16, "an overflow is counted");
}

}  // namespace

int main() {
  for (int32_t number = 0; number < 64; ++number) {
    if (is_block_type(number)) check_type(static_cast<BlockType>(number));
  }
  check_inexact_scales();
  return finish("pack", Digest{});
}
