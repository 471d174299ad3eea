// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011), as src/gristmill/sampling/philox.py defines its use.
#pragma once
#include "sample.h"
#include "simd.h"

namespace gm::GM_TIER {
namespace {

GM_INLINE uint64_t random_u64(uint64_t seed, uint32_t choice, uint32_t position) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = choice, c1 = position, c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0 | uint64_t{c1} << 32;
}

// floor(random * total / 2^64), exact.
GM_INLINE uint64_t target_of(const SampleRow& row, double total) {
  const auto product =
      static_cast<unsigned __int128>(random_u64(row.seed, row.choice, row.position)) * static_cast<uint64_t>(total);
  return static_cast<uint64_t>(product >> 64);
}

// The first id whose running sum exceeds target.
GM_INLINE int32_t draw_all(const float* w, int64_t vocab, uint64_t target) {
  uint64_t running = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    running += static_cast<uint64_t>(w[i]);
    if (running > target) return static_cast<int32_t>(i);
  }
  return 0;
}

GM_INLINE int32_t draw_listed(const float* w, const int32_t* ids, int64_t count, uint64_t target) {
  uint64_t running = 0;
  for (int64_t i = 0; i < count; ++i) {
    running += static_cast<uint64_t>(w[ids[i]]);
    if (running > target) return ids[i];
  }
  return ids[0];
}

}  // namespace
}  // namespace gm::GM_TIER
