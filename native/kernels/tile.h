// What the register tiles of all formats share.
#pragma once
#include <utility>

#include "lanes.h"
#include "linear.h"

namespace gm::GM_TIER {
namespace {

// `m` rows further on, rows being `stride` bytes apart.
template <class T>
GM_INLINE T* row_of(T* first, int64_t m, int64_t stride) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(first) + static_cast<uintptr_t>(m * stride));
}

// What a register tile fetches ahead of use: `lines` cache lines for each step of k.
struct Prefetch {
  const uint8_t* at;
  int64_t lines;
};

template <int kLines>
GM_INLINE void fetch(Prefetch& prefetch) {
  if (prefetch.lines == kLines) {
    unroll<kLines>([&](auto i) { __builtin_prefetch(prefetch.at + i * 64); });
  } else {
    for (int64_t i = 0; i < prefetch.lines; ++i) __builtin_prefetch(prefetch.at + i * 64);
  }
  prefetch.at += prefetch.lines * 64;
}

// Writes the 32 results of one row: bias, then the residual.
GM_INLINE void finish_row(const float* values, const LinearArgs& args, float* y, int64_t channel) {
  const int64_t count = args.n - channel < tile_channels ? args.n - channel : tile_channels;
  float* out = y + channel;
  for (int64_t c = 0; c < count; ++c) {
    float value = values[c];
    if (args.bias) value += args.bias[channel + c];
    if (args.accumulate) value += out[c];
    out[c] = value;
  }
}

}  // namespace
}  // namespace gm::GM_TIER
