// Rates of the linear kernels, beside what the machine can do in the same minute. usage: bench_linear [tier [threads]]
// Weights are cycled through 200 MB, so that the last cache does not help.
#include <algorithm>
#include <cstring>

#include "../runtime/pack.h"
#include "check.h"
#include "roofs.h"

using namespace gm;
using namespace gm::test;

namespace {

struct Case {
  Format format;
  int64_t n, k, rows;
};

double linear_time(const Kernels& kernels, const Case& c, const uint8_t* pool, int threads) {
  const int64_t matrix_bytes = packed_bytes(c.format, c.n, c.k), copies = std::max<int64_t>(1, pool_bytes / matrix_bytes);
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(3e8 / (2.0 * c.n * c.k * c.rows)), 1, copies);
  std::vector<float> x(c.rows * c.k, 0.5f), y(c.rows * c.n);
  Aligned<uint8_t> quantized(kernels.quantized_bytes(c.rows, c.k));
  kernels.quantize({x.data(), c.k, c.k, quantized.data, c.rows, 0, c.rows, 0, c.k});
  static std::atomic<int64_t> next{0};
  const int64_t first = next.fetch_add(calls);
  const void* input = is_quantized(c.format) ? static_cast<const void*>(quantized.data) : x.data();
  return time_of(threads,
                 [&](int worker) {
                   for (int64_t call = first; call < first + calls; ++call) {
                     kernels.linear[static_cast<int>(c.format)]({pool + call % copies * matrix_bytes, c.n, c.k, input, c.k,
                                                                 c.rows, y.data(), c.n, nullptr, false,
                                                                 c.n / 32 * worker / threads, c.n / 32 * (worker + 1) / threads});
                   }
                 }) /
         static_cast<double>(calls);
}

// The best of several rounds, each with the roof sampled beside it.
void measure(const Kernels& kernels, const Case& c, const uint8_t* pool, int threads) {
  double best = 1e9, memory = 0, dots = 0;
  for (int repetition = 0; repetition < 25; ++repetition) {
    memory = std::max(memory, memory_rate(pool, threads));
    dots = std::max(dots, dot_rate(threads));
    best = std::min(best, linear_time(kernels, c, pool, threads));
  }
  const double bytes = static_cast<double>(packed_bytes(c.format, c.n, c.k)) / best * 1e-9;
  const double ops = 2e-9 * static_cast<double>(c.n * c.k * c.rows) / best;
  std::printf(
      "%-8s format %d n %5ld k %5ld rows %4ld threads %d: %7.1f GOP/s (%3.0f %% of %5.0f) %6.1f GB/s (%3.0f %% of %4.1f)\n",
      kernels.tier, static_cast<int>(c.format), static_cast<long>(c.n), static_cast<long>(c.k), static_cast<long>(c.rows),
      threads, ops, 100 * ops / dots, dots, bytes, 100 * bytes / memory, memory);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  Aligned<uint8_t> pool(pool_bytes + 65536);
  std::memset(pool.data, 0x21, pool.size);
  for (const Kernels* kernels : tiers()) {
    if (argc > 1 && std::strcmp(argv[1], kernels->tier) != 0) continue;
    for (const int64_t rows : {1, 4, 6, 16, 64, 512}) {
      for (const Format format : {Format::q4_g32, Format::q4_g32_min, Format::q8_g32, Format::q8_g16, Format::bf16}) {
        measure(*kernels, {format, 1536, 576, rows}, pool.data, threads);
      }
      measure(*kernels, {Format::q4_g32, 8192, 2048, rows}, pool.data, threads);
      measure(*kernels, {Format::q4_g32, 2048, 8192, rows}, pool.data, threads);
    }
  }
}
