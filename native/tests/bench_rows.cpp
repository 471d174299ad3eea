// Times of the row-wise kernels around the linear ones, in nanoseconds for each row. usage: bench_rows [tier]
#include <algorithm>
#include <chrono>
#include <cstring>

#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

constexpr int64_t num_rows = 64;

template <class Work>
void measure(const Kernels& kernels, const char* name, int64_t width, const Work& work) {
  double best = 1e9;
  for (int repetition = 0; repetition < 20; ++repetition) {
    const auto started = std::chrono::steady_clock::now();
    for (int call = 0; call < 20; ++call) work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count() / 20);
  }
  std::printf("%-9s %-22s width %5ld: %8.1f ns/row\n", kernels.tier, name, static_cast<long>(width), best / num_rows * 1e9);
}

void measure_width(const Kernels& kernels, int64_t width) {
  Random random(3);
  std::vector<float> x(num_rows * width), weight(width), out(num_rows * width);
  for (float& value : x) value = random.uniform() * 3.0f;
  for (float& value : weight) value = random.uniform();
  Aligned<uint8_t> quantized(kernels.quantized_bytes(num_rows, width));
  measure(kernels, "quantize", width,
          [&] { kernels.quantize({x.data(), width, width, quantized.data, num_rows, 0, num_rows, 0, width}); });
  NormArgs norm{};
  norm.x = x.data();
  norm.ldx = norm.width = norm.ldo = width;
  norm.weight = weight.data();
  norm.eps = 1e-6f;
  norm.num_rows = norm.row_end = num_rows;
  norm.quantized = quantized.data;
  measure(kernels, "rms_norm + quantize", width, [&] { kernels.rms_norm(norm); });
  for (const Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::gelu}) {
    const char* names[] = {"silu + quantize", "gelu_tanh + quantize", "gelu + quantize"};
    ActMulArgs act{x.data(), x.data(), width, width, kind, nullptr, width, quantized.data, num_rows, 0, num_rows, 0, width};
    measure(kernels, names[static_cast<int>(kind)], width, [&] { kernels.act_mul(act); });
  }
  measure(kernels, "softcap", width, [&] { kernels.softcap(x.data(), 30.0f, out.data(), num_rows * width); });
}

}  // namespace

int main(int argc, char** argv) {
  for (const Kernels* kernels : tiers()) {
    if (argc > 1 && std::strcmp(argv[1], kernels->tier) != 0) continue;
    measure_width(*kernels, 576);
    measure_width(*kernels, 1536);
  }
}
