// Rates of the linear kernels on one and two threads. usage: bench_linear [tier]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Weights are cycled through 200 MB, so that the last cache does not help.
void measure(const Kernels& kernels, int format, int64_t bytes_per_block, int64_t n, int64_t k, int64_t rows, int threads) {
  const size_t matrix_bytes = (n / 32) * (k / 32) * bytes_per_block;
  const int copies = std::max<int>(1, static_cast<int>((200 << 20) / matrix_bytes));
  static Aligned<uint8_t>* weights = nullptr;
  if (!weights) {
    weights = new Aligned<uint8_t>(300 << 20);
    std::memset(weights->data, 0x21, weights->size);
  }
  std::vector<float> x(rows * k, 0.5f), y(rows * n);
  Aligned<uint8_t> quantized(kernels.quantized_bytes(rows, k));
  kernels.quantize({x.data(), k, k, quantized.data, rows, 0, rows, 0, k});
  double best = 1e9;
  for (int repetition = 0; repetition < 7; ++repetition) {
    const int calls = std::max<int>(1, static_cast<int>(4e9 / (2.0 * n * k * rows)));
    const auto work = [&](int worker) {
      for (int call = 0; call < std::min(calls, 4 * copies); ++call) {
        LinearArgs args{weights->data + (call % copies) * matrix_bytes, n, k, quantized.data, k, rows, y.data(), n, nullptr, false,
                        n / 32 * worker / threads, n / 32 * (worker + 1) / threads};
        kernels.linear[format](args);
      }
    };
    const double started = now();
    std::thread other;
    if (threads == 2) other = std::thread(work, 1);
    work(0);
    if (other.joinable()) other.join();
    best = std::min(best, (now() - started) / std::min(calls, 4 * copies));
  }
  std::printf("%-9s format %d n %5ld k %5ld rows %4ld threads %d: %7.1f GOP/s %6.1f GB/s\n", kernels.tier, format, static_cast<long>(n),
              static_cast<long>(k), static_cast<long>(rows), threads, 2e-9 * n * k * rows / best, matrix_bytes / best * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Kernels* kernels : tiers()) {
    if (argc > 1 && std::strcmp(argv[1], kernels->tier) != 0) continue;
    for (const int64_t rows : {1, 4, 16, 64, 512}) {
      for (const int threads : {1, 2}) {
        measure(*kernels, 0, 576, 1536, 576, rows, threads);
        measure(*kernels, 1, 640, 1536, 576, rows, threads);
        measure(*kernels, 0, 576, 8192, 2048, rows, threads);
        measure(*kernels, 4, 1088, 1536, 576, rows, threads);
      }
    }
  }
}
