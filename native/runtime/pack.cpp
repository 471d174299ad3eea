#include "pack.h"

#include <algorithm>
#include <cstring>

#include "published_blocks.h"

namespace gm {
namespace {

struct Published {
  BlockType type;
  Format format;
  int width, bytes;  // of one block
};
constexpr Published published_types[] = {
    {BlockType::f32, Format::f32, 1, 4},
    {BlockType::f16, Format::f16, 1, 2},
    {BlockType::q4_0, Format::q4_g32, 32, 18},
    {BlockType::q4_1, Format::q4_g32_min, 32, 20},
    {BlockType::q5_0, Format::q8_g32, 32, 22},
    {BlockType::q5_1, Format::q8_g32_min, 32, 24},
    {BlockType::q8_0, Format::q8_g32, 32, 34},
    {BlockType::q2_k, Format::q4_g16_min, 256, 84},
    {BlockType::q3_k, Format::q4_g16, 256, 110},
    {BlockType::q4_k, Format::q4_g32_min, 256, 144},
    {BlockType::q5_k, Format::q8_g32_min, 256, 176},
    {BlockType::q6_k, Format::q8_g16, 256, 210},
    {BlockType::iq4_nl, Format::q8_g32, 32, 18},
    {BlockType::bf16, Format::bf16, 1, 2},
};

const Published* find_type(BlockType type) {
  for (const Published& published : published_types) {
    if (published.type == type) return &published;
  }
  return nullptr;
}

int code_bits(Format format) { return static_cast<int32_t>(format) <= static_cast<int32_t>(Format::q4_g16_min) ? 4 : 8; }

int64_t codes_offset(Format format) { return block_k / group_size(format) * tile_channels * 2 * (has_min(format) ? 2 : 1); }

int64_t block_bytes(Format format) { return codes_offset(format) + tile_channels * block_k * code_bits(format) / 8; }

// Four k of one channel are four bytes of a line; lines of the two channel halves alternate.
void put_codes_q4(const uint8_t* codes, uint8_t* at) {
  for (int j = 0; j < 4; ++j) {
    uint32_t low, high;
    std::memcpy(&low, codes + 8 * j, 4);
    std::memcpy(&high, codes + 8 * j + 4, 4);
    low |= high << 4;
    std::memcpy(at + 128 * j, &low, 4);
  }
}

void put_codes_q8(const uint8_t* codes, uint8_t* at) {
  for (int j = 0; j < 8; ++j) std::memcpy(at + 128 * j, codes + 4 * j, 4);
}

// `scales` and `mins` as [groups of a block][32 channels].
void put_halves(const uint16_t* values, int num_groups, int channel, uint8_t* at) {
  for (int g = 0; g < num_groups; ++g) std::memcpy(at + 2 * (tile_channels * g + channel), values + g, 2);
}

void put_row(Format format, const GroupedRow& row, int64_t k, int channel, uint8_t* tile) {
  const int num_groups = block_k / group_size(format);
  const int64_t bytes = block_bytes(format), offset = codes_offset(format) + channel / 16 * 64 + channel % 16 * 4;
  for (int64_t b = 0; b < k / block_k; ++b) {
    uint8_t* block = tile + b * bytes;
    put_halves(row.scales.data() + b * num_groups, num_groups, channel, block);
    if (has_min(format))
      put_halves(row.mins.data() + b * num_groups, num_groups, channel, block + num_groups * tile_channels * 2);
    if (code_bits(format) == 4) {
      put_codes_q4(row.codes.data() + b * block_k, block + offset);
    } else {
      put_codes_q8(row.codes.data() + b * block_k, block + offset);
    }
  }
}

// A few k of all channels at a time: the lines written stay in the first cache until they are full.
template <class Stored>
void put_floats(const uint8_t* const* rows, int count, int64_t k, uint8_t* tile) {
  constexpr int64_t step = 64;
  for (int64_t begin = 0; begin < k; begin += step) {
    const int64_t end = std::min(begin + step, k);
    for (int channel = 0; channel < count; ++channel) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(tile + (i * tile_channels + channel) * sizeof(Stored), rows[channel] + i * sizeof(Stored), sizeof(Stored));
      }
    }
  }
}

// `rows`: where the rows of one tile begin; a tile that is partly padding is zeroed first.
void pack_tile(BlockType type, const uint8_t* const* rows, int count, int64_t k, uint8_t* tile, GroupedRow& scratch) {
  const Format format = packed_format(type);
  if (count < tile_channels) std::memset(tile, 0, static_cast<size_t>(packed_bytes(format, 1, k)));
  if (format == Format::f32) return put_floats<float>(rows, count, k, tile);
  if (!is_quantized(format)) return put_floats<uint16_t>(rows, count, k, tile);
  for (int channel = 0; channel < count; ++channel) {
    decode_row(type, rows[channel], k, scratch);
    put_row(format, scratch, k, channel, tile);
  }
}

}  // namespace

bool is_block_type(int32_t number) { return find_type(static_cast<BlockType>(number)) != nullptr; }

Format packed_format(BlockType type) { return find_type(type)->format; }

int64_t block_width(BlockType type) { return find_type(type)->width; }

int64_t row_bytes(BlockType type, int64_t k) { return k / find_type(type)->width * find_type(type)->bytes; }

int64_t packed_bytes(Format format, int64_t n, int64_t k) {
  const int64_t num_tiles = (n + tile_channels - 1) / tile_channels;
  if (is_quantized(format)) return num_tiles * (k / block_k) * block_bytes(format);
  return num_tiles * tile_channels * k * (format == Format::f32 ? 4 : 2);
}

int64_t pack_published(const PublishedMatrix& matrix, uint8_t* packed, int64_t tile_begin, int64_t tile_end) {
  const int64_t source_bytes = row_bytes(matrix.type, matrix.k);
  const int64_t tile_bytes = packed_bytes(packed_format(matrix.type), 1, matrix.k);
  GroupedRow scratch;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const int64_t first = t * tile_channels;
    const int count = static_cast<int>(std::min<int64_t>(matrix.n - first, tile_channels));
    const uint8_t* rows[tile_channels];
    for (int channel = 0; channel < count; ++channel) {
      const int64_t row = matrix.row_ids ? matrix.row_ids[first + channel] : first + channel;
      rows[channel] = matrix.data + row * source_bytes;
    }
    pack_tile(matrix.type, rows, count, matrix.k, packed + t * tile_bytes, scratch);
  }
  return scratch.num_inexact;
}

}  // namespace gm
