// Row-wise kernels of every tier against double arithmetic, and bit-equality over splits by rows and columns.
#include <cstring>
#include <string>

#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

double silu(double x) { return x / (1.0 + std::exp(-x)); }
// x / 2 * (1 + tanh(u)), without the cancellation.
double gelu_tanh(double x) { return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

std::vector<float> random_floats(int64_t count, uint64_t seed, float scale) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.uniform() * scale;
  return values;
}

// A linear layer whose matrix is the unit matrix reads quantized rows back: code * scale, exactly.
std::vector<float> read_back(const Kernels& kernels, const void* quantized, int64_t rows, int64_t k) {
  Aligned<uint8_t> unit(k / 32 * (k / 32) * 1088);
  for (int64_t t = 0; t < k / 32; ++t) {
    for (int64_t b = 0; b < k / 32; ++b) {
      uint8_t* block = unit.data + (t * (k / 32) + b) * 1088;
      for (int c = 0; c < 32; ++c) reinterpret_cast<uint16_t*>(block)[c] = 0x3c00;
      std::memset(block + 64, 128, 1024);
      if (t != b) continue;
      for (int c = 0; c < 32; ++c) block[64 + (2 * (c / 4) + c / 16) * 64 + c % 16 * 4 + c % 4] = 129;
    }
  }
  std::vector<float> y(rows * k);
  kernels.linear[static_cast<int>(Format::q8_g32)]({unit.data, k, k, quantized, 0, rows, y.data(), k, nullptr, false, 0, k / 32});
  return y;
}

void check_quantize(const Kernels& kernels, Digest& digest) {
  const int64_t rows = 5, k = 224;
  std::vector<float> x = random_floats(rows * k, 1, 4.0f);
  for (int i = 0; i < 32; ++i) x[2 * k + 64 + i] = 0.0f;
  for (int i = 0; i < 32; ++i) x[2 * k + 96 + i] = 1e-39f;
  Aligned<uint8_t> whole(kernels.quantized_bytes(rows, k)), parts(kernels.quantized_bytes(rows, k));
  kernels.quantize({x.data(), k, k, whole.data, rows, 0, rows, 0, k});
  for (int64_t r = 0; r < rows; ++r) {
    kernels.quantize({x.data(), k, k, parts.data, rows, r, r + 1, 96, k});
    kernels.quantize({x.data(), k, k, parts.data, rows, r, r + 1, 0, 96});
  }
  const std::vector<float> seen = read_back(kernels, whole.data, rows, k);
  check(seen == read_back(kernels, parts.data, rows, k), "quantize: a row in parts has other bits");
  bool is_equal = true;
  for (int64_t g = 0; g < rows * k / 32; ++g) {
    float largest = 0.0f;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[g * 32 + i]));
    const float scale = largest < 1e-30f ? 0.0f : largest / 127.0f, inverse = largest < 1e-30f ? 0.0f : 127.0f / largest;
    for (int i = 0; i < 32; ++i) is_equal &= seen[g * 32 + i] == std::nearbyint(x[g * 32 + i] * inverse) * scale;
  }
  check(is_equal, "quantize: codes are round to even(x * (127 / largest)), the scale is largest / 127");
  if (kernels.tier == kernels_portable()->tier) digest.add(seen.data(), seen.size() * 4);
}

void check_poison(const Kernels& kernels) {
  for (const float poison : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (int column = 0; column < 160; ++column) {
      std::vector<float> x = random_floats(160, 2, 3.0f);
      x[column] = poison;
      Aligned<uint8_t> quantized(kernels.quantized_bytes(1, 160));
      kernels.quantize({x.data(), 160, 160, quantized.data, 1, 0, 1, 0, 160});
      const std::vector<float> seen = read_back(kernels, quantized.data, 1, 160);
      bool is_spoiled = true;
      for (const float value : seen) is_spoiled &= std::isnan(value);
      check(is_spoiled, "quantize: one value that is not finite spoils the whole row");
    }
  }
}

void check_norm(const Kernels& kernels, int64_t width, int64_t head_dim, Digest& digest) {
  const int64_t rows = 3, span = head_dim ? head_dim : width;
  const std::vector<float> x = random_floats(rows * width, width, 2.0f), weight = random_floats(span, 4, 1.0f);
  std::vector<float> out(rows * width), in_place = x;
  const bool is_quantized = width % 32 == 0 && span % 32 == 0;
  Aligned<uint8_t> quantized(kernels.quantized_bytes(rows, width)), expected(kernels.quantized_bytes(rows, width));
  NormArgs args{x.data(), width, weight.data(), 1e-5f, width, head_dim, out.data(), width, nullptr, rows, 0, rows};
  kernels.rms_norm(args);
  args.x = args.out = in_place.data();
  for (args.row_begin = 0; args.row_begin < rows; ++args.row_begin) {
    args.row_end = args.row_begin + 1;
    kernels.rms_norm(args);
  }
  check(in_place == out, "rms_norm: in place and row by row has other bits");
  double worst = 0;
  for (int64_t start = 0; start < rows * width; start += span) {
    double sum = 0;
    for (int64_t i = 0; i < span; ++i) sum += static_cast<double>(x[start + i]) * x[start + i];
    for (int64_t i = 0; i < span; ++i) {
      const double value = x[start + i] / std::sqrt(sum / span + 1e-5) * weight[i];
      worst = std::fmax(worst, std::fabs(out[start + i] - value) / (std::fabs(value) + 1e-3));
    }
  }
  check(worst < 1e-6, "rms_norm against double");
  if (kernels.tier == kernels_portable()->tier) digest.add(out.data(), out.size() * 4);
  if (!is_quantized) return;
  args = {x.data(), width, weight.data(), 1e-5f, width, head_dim, nullptr, 0, quantized.data, rows, 0, rows};
  kernels.rms_norm(args);
  kernels.quantize({out.data(), width, width, expected.data, rows, 0, rows, 0, width});
  check(read_back(kernels, quantized.data, rows, width) == read_back(kernels, expected.data, rows, width),
        "rms_norm: fused quantization");
}

double error_of(const std::vector<float>& x, const std::vector<float>& up, const std::vector<float>& out,
                double (*function)(double)) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = function(x[i]) * up[i];
    // The argument of an exponential carries its own rounding error, which grows with its size.
    const double bound = std::fabs(value) * (1.0 + std::fabs(x[i]) * (function == silu ? 0.5 : 4.0)) + 1e-30;
    worst = std::fmax(worst, std::fabs(out[i] - value) / bound);
  }
  return worst;
}

void check_activation(const Kernels& kernels, Activation kind, double (*function)(double), Digest& digest) {
  const int64_t rows = 4, width = 1056;
  std::vector<float> x = random_floats(rows * width, 5, 10.0f);
  for (int i = 0; i < 64; ++i) x[i] *= 0.001f * static_cast<float>(i * i % 100);
  const std::vector<float> up = random_floats(rows * width, 6, 1.0f);
  std::vector<float> out(rows * width), parts(rows * width);
  ActMulArgs args{x.data(), up.data(), width, width, kind, out.data(), width, nullptr, rows, 0, rows, 0, width};
  kernels.act_mul(args);
  const double error = error_of(x, up, out, function);
  if (!(error < 5e-7)) std::printf("%s activation %d: error %g\n", kernels.tier, static_cast<int>(kind), error);
  check(error < 5e-7, "act_mul against double");
  if (kernels.tier == kernels_portable()->tier) digest.add(out.data(), out.size() * 4);
  Aligned<uint8_t> quantized(kernels.quantized_bytes(rows, width)), expected(kernels.quantized_bytes(rows, width));
  args.out = parts.data();
  args.quantized = quantized.data;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 352}, {352, 1056}}) {
    args.column_begin = begin;
    args.column_end = end;
    kernels.act_mul(args);
  }
  check(parts == out, "act_mul: columns in parts have other bits");
  kernels.quantize({out.data(), width, width, expected.data, rows, 0, rows, 0, width});
  check(read_back(kernels, quantized.data, rows, width) == read_back(kernels, expected.data, rows, width),
        "act_mul: fused quantization");
  args.quantized = nullptr;
  args.column_begin = 0;
  args.column_end = width - 5;  // not a whole number of registers
  std::memset(parts.data(), 0, parts.size() * 4);
  kernels.act_mul(args);
  check(std::memcmp(parts.data(), out.data(), (width - 5) * 4) == 0 && parts[width - 1] == 0.0f, "act_mul: a ragged end");
}

void check_extremes(const Kernels& kernels) {
  for (const Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::gelu}) {
    const std::vector<float> x{NAN, 1e30f, -1e30f, 3e38f, -3e38f, 100.0f, -100.0f, 0.0f, -0.0f, 1e-40f, 88.5f, -88.5f},
        up(x.size(), 1.0f);
    std::vector<float> out(x.size());
    const auto count = static_cast<int64_t>(x.size());
    kernels.act_mul({x.data(), up.data(), count, count, kind, out.data(), count, nullptr, 1, 0, 1, 0, count});
    check(std::isnan(out[0]) && out[5] == 100.0f && std::fabs(out[6]) < 1e-30f && out[7] == 0.0f, "activation of extreme values");
    for (const int i : {2, 4, 11}) check(std::fabs(out[i]) < 1e-30f, "activation of large negative values is zero");
  }
}

void check_add_and_softcap(const Kernels& kernels, Digest& digest) {
  const std::vector<float> x = random_floats(1003, 7, 200.0f), y = random_floats(1003, 8, 1.0f);
  std::vector<float> sum(1003), capped(1003);
  kernels.add(x.data(), y.data(), sum.data(), 1003);
  kernels.softcap(x.data(), 30.0f, capped.data(), 1003);
  bool is_equal = true;
  double worst = 0;
  for (int i = 0; i < 1003; ++i) {
    is_equal &= sum[i] == x[i] + y[i];
    const double value = 30.0 * std::tanh(static_cast<double>(x[i]) / 30.0);
    worst = std::fmax(worst, std::fabs(capped[i] - value) / std::fabs(value));
  }
  check(is_equal, "add");
  check(worst < 4e-7, "softcap against double");
  std::vector<float> small{0.0f, 1e-20f, -1e-5f, NAN, INFINITY, -INFINITY}, out(6);
  kernels.softcap(small.data(), 50.0f, out.data(), 6);
  check(out[0] == 0.0f && std::fabs(out[1] / 1e-20f - 1.0f) < 1e-6f && std::fabs(out[2] / -1e-5f - 1.0f) < 1e-6f,
        "softcap of small values");
  check(std::isnan(out[3]) && out[4] == 50.0f && out[5] == -50.0f, "softcap of extreme values");
  if (kernels.tier == kernels_portable()->tier) digest.add(capped.data(), capped.size() * 4);
}

}  // namespace

int main() {
  Digest digest;
  for (const Kernels* kernels : tiers()) {
    check_quantize(*kernels, digest);
    check_poison(*kernels);
    for (const int64_t width : {32, 64, 576, 1152, 1530}) check_norm(*kernels, width, 0, digest);
    for (const int64_t head_dim : {64, 80, 128, 256}) check_norm(*kernels, head_dim * 3, head_dim, digest);
    check_activation(*kernels, Activation::silu, silu, digest);
    check_activation(*kernels, Activation::gelu_tanh, gelu_tanh, digest);
    check_activation(*kernels, Activation::gelu, gelu, digest);
    check_extremes(*kernels);
    check_add_and_softcap(*kernels, digest);
  }
  return finish("rows", digest);
}
