// What this machine can do in the same minute: seconds of threads that start together, GB/s of memory, arithmetic.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace gm::test {

constexpr int64_t pool_bytes = int64_t{200} << 20;

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of work(worker) on `threads` threads that start together.
template <class Work>
double time_of(int threads, const Work& work) {
  std::atomic<int> ready{0};
  const auto run = [&](int worker) {
    ++ready;
    while (ready < threads) {
    }
    work(worker);
  };
  std::vector<std::thread> others;
  for (int worker = 1; worker < threads; ++worker) others.emplace_back(run, worker);
  while (ready < threads - 1) std::this_thread::yield();
  const double started = now();
  run(0);
  for (std::thread& other : others) other.join();
  return now() - started;
}

// GB/s of reading the pool.
inline double memory_rate(const uint8_t* pool, int threads) {
  std::atomic<uint64_t> total{0};
  const double seconds = time_of(threads, [&](int worker) {
    const auto* begin = reinterpret_cast<const uint64_t*>(pool + pool_bytes / threads * worker);
    uint64_t sums[8] = {};
    for (int64_t i = 0; i < pool_bytes / threads / 8; i += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += begin[i + j];
    }
    total += sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  });
  return pool_bytes / seconds * 1e-9;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) inline void dot_loop(int64_t rounds) {
#define GM_DOT(i) "vpdpbusd %%zmm1, %%zmm0, %%zmm" #i "\n\t"
  asm volatile("1:\n\t" GM_DOT(4) GM_DOT(5) GM_DOT(6) GM_DOT(7) GM_DOT(8) GM_DOT(9) GM_DOT(10) GM_DOT(11) GM_DOT(12) GM_DOT(13)
                   GM_DOT(14) GM_DOT(15) "dec %0\n\tjnz 1b"
               : "+r"(rounds)
               :
               : "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "cc");
#undef GM_DOT
}

__attribute__((target("avx512f"))) inline void fma_loop(int64_t rounds) {
#define GM_FMA(i) "vfmadd231ps %%zmm1, %%zmm0, %%zmm" #i "\n\t"
  asm volatile(
      "vpxord %%zmm0, %%zmm0, %%zmm0\n\t"
      "1:\n\t" GM_FMA(4) GM_FMA(5) GM_FMA(6) GM_FMA(7) GM_FMA(8) GM_FMA(9) GM_FMA(10) GM_FMA(11) GM_FMA(12) GM_FMA(13) GM_FMA(14)
          GM_FMA(15) "dec %0\n\tjnz 1b"
      : "+r"(rounds)
      :
      : "zmm0", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "cc");
#undef GM_FMA
}

__attribute__((target("fma"))) inline void fma_loop_256(int64_t rounds) {
#define GM_FMA(i) "vfmadd231ps %%ymm1, %%ymm0, %%ymm" #i "\n\t"
  asm volatile(
      "vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
      "1:\n\t" GM_FMA(4) GM_FMA(5) GM_FMA(6) GM_FMA(7) GM_FMA(8) GM_FMA(9) GM_FMA(10) GM_FMA(11) GM_FMA(12) GM_FMA(13) GM_FMA(14)
          GM_FMA(15) "dec %0\n\tjnz 1b"
      : "+r"(rounds)
      :
      : "xmm0", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc");
#undef GM_FMA
}
#endif

// GOP/s of vpdpbusd on 512-bit registers; 0 if this machine has none.
inline double dot_rate(int threads) {
#if defined(__x86_64__)
  constexpr int64_t rounds = 500000;
  if (__builtin_cpu_supports("avx512vnni"))
    return 12 * 128e-9 * rounds * threads / time_of(threads, [](int) { dot_loop(rounds); });
#endif
  return 0.0 * threads;
}

// GFLOP/s of f32 multiply-adds on the widest registers; 0 if this machine has none.
inline double fma_rate(int threads) {
#if defined(__x86_64__)
  constexpr int64_t rounds = 500000;
  if (__builtin_cpu_supports("avx512f")) return 12 * 32e-9 * rounds * threads / time_of(threads, [](int) { fma_loop(rounds); });
  if (__builtin_cpu_supports("fma")) return 12 * 16e-9 * rounds * threads / time_of(threads, [](int) { fma_loop_256(rounds); });
#endif
  return 0.0 * threads;
}

}  // namespace gm::test
