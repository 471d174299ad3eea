// Row-wise kernels: each row is computed alone, in one order, whatever the threads do.
#include "math.h"
#include "quantized_rows.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

constexpr int lanes = 16;

// The largest magnitude as bits: NaN sorts above infinity, and both above every number.
GM_INLINE uint32_t magnitude_max(const float* x) {
  uint32_t most[lanes];
  for (int i = 0; i < lanes; ++i) {
    const uint32_t a = float_to_bits(x[i]) & 0x7fffffffu, b = float_to_bits(x[i + lanes]) & 0x7fffffffu;
    most[i] = a > b ? a : b;
  }
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) most[i] = most[i] > most[i + width] ? most[i] : most[i + width];
  }
  return most[0];
}

// One group of 32 columns of row r.
GM_INLINE void quantize_group(const float* x, const QuantizedRows& rows, int64_t r, int64_t group, int64_t k) {
  const int64_t index = r * (k / block_k) + group;
  int8_t* codes = rows.codes + r * k + group * block_k;
  const uint32_t bits = magnitude_max(x);
  const float largest = bits_to_float(bits);
  const bool is_finite = bits < 0x7f800000u;
  const bool is_zero = largest < 1e-30f;
  const float inverse = is_finite && !is_zero ? 127.0f / largest : 0.0f;
  const float scale = is_finite ? (is_zero ? 0.0f : largest / 127.0f) : bits_to_float(0x7fc00000u);
  int32_t q[block_k];
  for (int i = 0; i < block_k; ++i) {
    const float value = is_finite ? x[i] : 0.0f;
    q[i] = static_cast<int32_t>(float_to_bits(value * inverse + round_magic) - float_to_bits(round_magic));
  }
  int32_t low = 0, high = 0;
  for (int i = 0; i < 16; ++i) low += q[i];
  for (int i = 16; i < 32; ++i) high += q[i];
  for (int i = 0; i < block_k; ++i) codes[i] = static_cast<int8_t>(q[i]);
  rows.scales[index] = scale;
  rows.sums[index] = low + high;
  rows.scaled_sums[index] = scale * static_cast<float>(low + high);
  rows.sums16[2 * index] = low;
  rows.sums16[2 * index + 1] = high;
  rows.scaled_sums16[2 * index] = scale * static_cast<float>(low);
  rows.scaled_sums16[2 * index + 1] = scale * static_cast<float>(high);
}

GM_INLINE float mean_square(const float* x, int64_t width) {
  float sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    for (int j = 0; j < lanes; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i < width; ++i, ++j) sums[j] += x[i] * x[i];
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0] / static_cast<float>(width);
}

template <Activation kKind>
GM_INLINE float activate(float x) {
  if constexpr (kKind == Activation::silu) return x * sigmoid(x);
  if constexpr (kKind == Activation::gelu_tanh) {
    return 0.5f * x * (1.0f + tanh_float(0.7978845608028654f * (x + 0.044715f * x * x * x)));
  }
  return 0.5f * x * (1.0f + erf_float(x * 0.70710678118654752f));
}

template <Activation kKind>
void act_mul_rows(const ActMulArgs& args) {
  const QuantizedRows rows = quantized_rows(args.quantized, args.num_rows, args.width);
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const float* gate = args.gate + r * args.ld;
    const float* up = args.up + r * args.ld;
    for (int64_t column = args.column_begin; column < args.column_end; column += block_k) {
      alignas(64) float value[block_k] = {};
      const int64_t count = args.column_end - column < block_k ? args.column_end - column : block_k;
      if (count == block_k) {
        for (int i = 0; i < block_k; ++i) value[i] = activate<kKind>(gate[column + i]) * up[column + i];
      } else {
        for (int64_t i = 0; i < count; ++i) value[i] = activate<kKind>(gate[column + i]) * up[column + i];
      }
      if (args.out) {
        for (int64_t i = 0; i < count; ++i) args.out[r * args.ldo + column + i] = value[i];
      }
      if (args.quantized) quantize_group(value, rows, r, column / block_k, args.width);
    }
  }
}

// Value (n, k) of a packed matrix.
template <int kBits, int kGroup, bool kMin>
void embed_quantized(const EmbedArgs& args) {
  constexpr int groups = block_k / kGroup;
  constexpr int codes_offset = groups * tile_channels * 2 * (kMin ? 2 : 1);
  constexpr int block_bytes = codes_offset + tile_channels * block_k * kBits / 8;
  constexpr int zero = kBits == 8 ? 128 : (kMin ? 0 : 8);
  const int64_t blocks = args.width / block_k;
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const int64_t n = args.token_ids[r], c = n % tile_channels;
    const uint8_t* tile = args.weight + n / tile_channels * blocks * block_bytes;
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* p = tile + b * block_bytes;
      const auto* halves = reinterpret_cast<const uint16_t*>(p);
      const uint8_t* codes = p + codes_offset + c / 16 * 64 + c % 16 * 4;
      for (int k = 0; k < block_k; ++k) {
        int code;
        if constexpr (kBits == 4) {
          const uint8_t byte = codes[k / 8 * 128 + k % 4];
          code = k % 8 < 4 ? byte & 15 : byte >> 4;
        } else {
          code = codes[k / 4 * 128 + k % 4];
        }
        float value = static_cast<float>(code - zero) * half_to_float(halves[k / kGroup * tile_channels + c]);
        if constexpr (kMin) value = value + half_to_float(halves[(groups + k / kGroup) * tile_channels + c]);
        args.out[r * args.width + b * block_k + k] = value * args.scale;
      }
    }
  }
}

template <class T, float (*kConvert)(T)>
void embed_float(const EmbedArgs& args) {
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const int64_t n = args.token_ids[r];
    const T* tile = reinterpret_cast<const T*>(args.weight) + n / tile_channels * args.width * tile_channels + n % tile_channels;
    for (int64_t k = 0; k < args.width; ++k) args.out[r * args.width + k] = kConvert(tile[k * tile_channels]) * args.scale;
  }
}

float same(float value) { return value; }
float from_half(uint16_t value) { return half_to_float(value); }
float from_bf16(uint16_t value) { return bf16_to_float(value); }

}  // namespace

int64_t quantized_bytes(int64_t num_rows, int64_t k) {
  const int64_t groups = num_rows * (k / block_k);
  return align64(num_rows * k) + 3 * align64(groups * 4) + 2 * align64(groups * 8);
}

void quantize(const QuantizeArgs& args) {
  const QuantizedRows rows = quantized_rows(args.quantized, args.num_rows, args.width);
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    for (int64_t column = args.column_begin; column < args.column_end; column += block_k) {
      quantize_group(args.x + r * args.ldx + column, rows, r, column / block_k, args.width);
    }
  }
}

void rms_norm(const NormArgs& args) {
  const int64_t span = args.head_dim ? args.head_dim : args.width;
  const QuantizedRows rows = quantized_rows(args.quantized, args.num_rows, args.width);
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const float* x = args.x + r * args.ldx;
    float* out = args.out ? args.out + r * args.ldo : nullptr;
    for (int64_t start = 0; start < args.width; start += span) {
      const float factor = 1.0f / __builtin_sqrtf(mean_square(x + start, span) + args.eps);
      if (out) {
        for (int64_t i = 0; i < span; ++i) out[start + i] = x[start + i] * factor * args.weight[i];
      } else {
        for (int64_t i = 0; i < span; i += block_k) {
          alignas(64) float value[block_k];
          for (int j = 0; j < block_k; ++j) value[j] = x[start + i + j] * factor * args.weight[i + j];
          quantize_group(value, rows, r, (start + i) / block_k, args.width);
        }
      }
    }
    if (out && args.quantized) {
      for (int64_t i = 0; i < args.width; i += block_k) quantize_group(out + i, rows, r, i / block_k, args.width);
    }
  }
}

void act_mul(const ActMulArgs& args) {
  if (args.kind == Activation::silu) return act_mul_rows<Activation::silu>(args);
  if (args.kind == Activation::gelu_tanh) return act_mul_rows<Activation::gelu_tanh>(args);
  act_mul_rows<Activation::gelu>(args);
}

void embed(const EmbedArgs& args) {
  switch (args.format) {
    case Format::q4_g32: return embed_quantized<4, 32, false>(args);
    case Format::q4_g32_min: return embed_quantized<4, 32, true>(args);
    case Format::q4_g16: return embed_quantized<4, 16, false>(args);
    case Format::q4_g16_min: return embed_quantized<4, 16, true>(args);
    case Format::q8_g32: return embed_quantized<8, 32, false>(args);
    case Format::q8_g32_min: return embed_quantized<8, 32, true>(args);
    case Format::q8_g16: return embed_quantized<8, 16, false>(args);
    case Format::f16: return embed_float<uint16_t, from_half>(args);
    case Format::bf16: return embed_float<uint16_t, from_bf16>(args);
    case Format::f32: return embed_float<float, same>(args);
  }
}

void add(const float* x, const float* y, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] + y[i];
}

void softcap(const float* x, float cap, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = cap * tanh_float(x[i] / cap);
}

}  // namespace gm::GM_TIER
