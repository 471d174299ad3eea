// Rows of an embedding matrix, read out of its packed tiles.
#include "linear_quantized.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

// Code of k = 0..31 of one channel, `codes` being its first byte in the block's first line.
template <int kBits>
GM_INLINE int code_of(const uint8_t* codes, int k) {
  if constexpr (kBits == 8) return codes[k / 4 * 128 + k % 4];
  const uint8_t byte = codes[k / 8 * 128 + k % 4];
  return k % 8 < 4 ? byte & 15 : byte >> 4;
}

template <int kBits, int kGroup, bool kMin>
void embed_row(const uint8_t* tile, int64_t channel, const EmbedArgs& args, float* out) {
  using L = Layout<kBits, kGroup, kMin>;
  for (int64_t b = 0; b < args.width / block_k; ++b) {
    const uint8_t* block = tile + b * L::block_bytes;
    const auto* scales = reinterpret_cast<const uint16_t*>(block) + channel;
    const auto* mins = reinterpret_cast<const uint16_t*>(block + L::min_offset) + channel;
    const uint8_t* codes = block + L::codes_offset + channel / 16 * 64 + channel % 16 * 4;
    for (int k = 0; k < block_k; ++k) {
      const int g = k / kGroup * tile_channels;
      float value = static_cast<float>(code_of<kBits>(codes, k) - L::zero) * half_to_float(scales[g]);
      if constexpr (kMin) value = value + half_to_float(mins[g]);
      out[b * block_k + k] = value * args.scale;
    }
  }
}

template <int kBits, int kGroup, bool kMin>
void embed_quantized(const EmbedArgs& args) {
  const int64_t tile_bytes = args.width / block_k * Layout<kBits, kGroup, kMin>::block_bytes;
  for (int64_t r = args.row_begin; r < args.row_end; ++r) {
    const int64_t n = args.token_ids[r];
    embed_row<kBits, kGroup, kMin>(args.weight + n / tile_channels * tile_bytes, n % tile_channels, args,
                                   args.out + r * args.width);
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

}  // namespace gm::GM_TIER
