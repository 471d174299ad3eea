// What the native tests share: tiers of this machine, random data, a failing exit code.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../kernels/kernels.h"

namespace gm::test {

inline int num_failures = 0;
inline int num_checks = 0;

inline void check(bool is_true, const char* what) {
  ++num_checks;
  if (!is_true) {
    ++num_failures;
    std::printf("FAILED: %s\n", what);
  }
}

// Set by tools/check_portable.sh: emulators are slow, so the longest cases are left out.
inline bool is_brief() { return std::getenv("GRISTMILL_TEST_BRIEF") != nullptr; }

// The tiers of this machine, or the one that the environment names.
inline std::vector<const Kernels*> tiers() {
  std::vector<const Kernels*> found{kernels_portable()};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && kernels_avx2()) found.push_back(kernels_avx2());
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") && kernels_avx512())
    found.push_back(kernels_avx512());
#endif
  const char* only = std::getenv("GRISTMILL_TEST_TIER");
  if (only) std::erase_if(found, [&](const Kernels* kernels) { return std::strcmp(kernels->tier, only) != 0; });
  return found;
}

// 64-byte aligned memory.
template <class T>
struct Aligned {
  explicit Aligned(size_t count)
      : size(count), data(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64))) {
    for (size_t i = 0; i < count; ++i) data[i] = T{};
  }
  Aligned(const Aligned&) = delete;
  ~Aligned() { std::free(data); }
  T& operator[](size_t i) { return data[i]; }
  const T& operator[](size_t i) const { return data[i]; }
  size_t size;
  T* data;
};

// Uniform numbers that are the same on every machine.
struct Random {
  explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint32_t next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  }
  float uniform() { return static_cast<float>(next() & 0xffffff) / 16777216.0f * 2.0f - 1.0f; }
  uint64_t state;
};

// FNV-1a over bits: what check-portable compares between machines.
struct Digest {
  uint64_t value = 0xcbf29ce484222325ull;
  void add(const void* data, size_t count) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < count; ++i) value = (value ^ bytes[i]) * 0x100000001b3ull;
  }
};

inline int finish(const char* name, const Digest& portable) {
  std::printf("%s: %d passed, %d failed; portable digest %016llx\n", name, num_checks - num_failures, num_failures,
              static_cast<unsigned long long>(portable.value));
  return num_failures ? 1 : 0;
}

}  // namespace gm::test
