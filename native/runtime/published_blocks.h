// One row of published blocks as codes, scales and minimums of an execution format.
#pragma once
#include <cstdint>
#include <vector>

#include "pack.h"

namespace gm {

struct GroupedRow {
  std::vector<uint8_t> codes;    // [k]
  std::vector<uint16_t> scales;  // [k / group], fp16
  std::vector<uint16_t> mins;    // [k / group], fp16; used by formats with a minimum
  int64_t num_inexact = 0;       // scales and minimums that lost precision, over all rows so far
};

int group_size(Format format);
bool has_min(Format format);

// `type` is a quantized one.
void decode_row(BlockType type, const uint8_t* source, int64_t k, GroupedRow& row);

}  // namespace gm
