// Linear kernels of every tier against a double reference, and bit-equality over row counts and tile ranges.
#include <cstring>
#include <string>

#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

struct Shape {
  int bits, group;
  bool has_min;
};
constexpr Shape shapes[7] = {{4, 32, false}, {4, 32, true}, {4, 16, false}, {4, 16, true},
                             {8, 32, false}, {8, 32, true}, {8, 16, false}};

uint16_t to_half(float value) {  // positive normal numbers only
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | ((((bits >> 23) & 255) - 112) << 10) | ((bits >> 13) & 1023));
}
double from_half(uint16_t half) {
  const double magnitude = std::ldexp(1.0 + (half & 1023) / 1024.0, ((half >> 10) & 31) - 15);
  return half & 0x8000 ? -magnitude : magnitude;
}

// Random packed weights and their values.
struct Weights {
  Weights(int format, int64_t n, int64_t k, Random& random) : n(n), k(k), values(n * k), packed(bytes(format, n, k)) {
    if (format < 7) fill_quantized(shapes[format], random);
    else fill_float(static_cast<Format>(format), random);
  }
  static size_t block_bytes(const Shape& s) { return (32 / s.group) * 64 * (s.has_min ? 2 : 1) + 128 * s.bits; }
  static size_t bytes(int format, int64_t n, int64_t k) {
    const int64_t tiles = (n + 31) / 32;
    if (format < 7) return tiles * (k / 32) * block_bytes(shapes[format]);
    return tiles * 32 * k * (format == 9 ? 4 : 2);
  }
  void fill_quantized(const Shape& s, Random& random) {
    const int groups = 32 / s.group;
    for (int64_t t = 0; t < (n + 31) / 32; ++t) {
      for (int64_t b = 0; b < k / 32; ++b) {
        uint8_t* p = packed.data + (t * (k / 32) + b) * block_bytes(s);
        auto* halves = reinterpret_cast<uint16_t*>(p);
        uint8_t* codes = p + groups * 64 * (s.has_min ? 2 : 1);
        for (int i = 0; i < groups * 32; ++i) halves[i] = to_half(0.01f + 0.01f * std::fabs(random.uniform()));
        if (s.has_min)
          for (int i = 0; i < groups * 32; ++i) halves[groups * 32 + i] = to_half(-0.05f - 0.05f * std::fabs(random.uniform()));
        for (int i = 0; i < 128 * s.bits; ++i) codes[i] = random.next() & 255;
        for (int c = 0; c < 32 && t * 32 + c < n; ++c) {
          for (int i = 0; i < 32; ++i) {
            int code;
            if (s.bits == 4) {
              const uint8_t byte = codes[(2 * (i / 8) + c / 16) * 64 + c % 16 * 4 + i % 4];
              code = (i % 8 < 4 ? byte & 15 : byte >> 4) - (s.has_min ? 0 : 8);
            } else {
              code = codes[(2 * (i / 4) + c / 16) * 64 + c % 16 * 4 + i % 4] - 128;
            }
            const int g = i / s.group;
            double value = code * from_half(halves[g * 32 + c]);
            if (s.has_min) value += from_half(halves[(groups + g) * 32 + c]);
            values[(t * 32 + c) * k + b * 32 + i] = value;
          }
        }
      }
    }
  }
  void fill_float(Format format, Random& random) {
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const float value = 0.01f + std::fabs(random.uniform());
        const size_t at = (row / 32 * k + i) * 32 + row % 32;
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (format == Format::f32) {
          reinterpret_cast<float*>(packed.data)[at] = value;
          values[row * k + i] = value;
        } else if (format == Format::bf16) {
          reinterpret_cast<uint16_t*>(packed.data)[at] = bits >> 16;
          bits &= 0xffff0000u;
          float kept;
          std::memcpy(&kept, &bits, 4);
          values[row * k + i] = kept;
        } else {
          const uint16_t half = to_half(value);
          reinterpret_cast<uint16_t*>(packed.data)[at] = half;
          values[row * k + i] = from_half(half);
        }
      }
    }
  }
  int64_t n, k;
  std::vector<double> values;  // [n, k]
  Aligned<uint8_t> packed;
};

struct Case {
  Case(const Kernels& kernels, int format, const Weights& weights, const std::vector<float>& x, int64_t rows)
      : kernels(kernels),
        format(format),
        weights(weights),
        x(x),
        rows(rows),
        y(rows * weights.n, 0.5f),
        bias(weights.n, 0.25f),
        quantized(kernels.quantized_bytes(rows, weights.k)) {
    if (format < 7) kernels.quantize({x.data(), weights.k, weights.k, quantized.data, rows, 0, rows, 0, weights.k});
  }
  void run(int64_t tile_begin, int64_t tile_end, bool accumulate) {
    LinearArgs args{weights.packed.data, weights.n,  weights.k,  format < 7 ? static_cast<const void*>(quantized.data) : x.data(),
                    weights.k,           rows,       y.data(),   weights.n,
                    bias.data(),         accumulate, tile_begin, tile_end};
    kernels.linear[format](args);
  }
  const Kernels& kernels;
  int format;
  const Weights& weights;
  const std::vector<float>& x;
  int64_t rows;
  std::vector<float> y, bias;
  Aligned<uint8_t> quantized;
};

// What the kernel multiplies with: activations after quantization, in double.
std::vector<double> seen(int format, const std::vector<float>& x, int64_t rows, int64_t k) {
  std::vector<double> result(x.begin(), x.begin() + rows * k);
  if (format >= 7) return result;
  for (int64_t g = 0; g < rows * k / 32; ++g) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[g * 32 + i]));
    for (int i = 0; i < 32; ++i) {
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      result[g * 32 + i] = std::nearbyint(x[g * 32 + i] * inverse) * static_cast<double>(largest / 127.0f);
    }
  }
  return result;
}

void compare(const Kernels& kernels, int format, int64_t n, int64_t k, int64_t rows, Digest& digest) {
  Random random(format * 1000 + n + k + rows);
  const Weights weights(format, n, k, random);
  std::vector<float> x(rows * k);
  for (float& value : x) value = random.uniform() * 3.0f;
  const std::string name = std::string(kernels.tier) + " format " + std::to_string(format) + " n " + std::to_string(n) + " k " +
                           std::to_string(k) + " rows " + std::to_string(rows);
  Case all(kernels, format, weights, x, rows);
  const int64_t tiles = (n + 31) / 32;
  all.run(0, tiles, false);
  const std::vector<double> activations = seen(format, x, rows, k);
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double product = weights.values[c * k + i] * activations[r * k + i];
        sum += product;
        size += std::fabs(product);
      }
      worst = std::fmax(worst, std::fabs(all.y[r * n + c] - 0.25 - sum) / (size + 1.0));
    }
  }
  if (worst > 2e-6) std::printf("%s: error %g\n", name.c_str(), worst);
  check(worst <= 2e-6, name.c_str());
  for (int64_t r = 0; r < rows; r += 3) {
    const std::vector<float> one(x.begin() + r * k, x.begin() + (r + 1) * k);
    Case alone(kernels, format, weights, one, 1);
    for (int64_t t = tiles - 1; t >= 0; --t) alone.run(t, t + 1, false);
    check(std::memcmp(alone.y.data(), all.y.data() + r * n, n * 4) == 0, (name + ": a row alone has other bits").c_str());
  }
  if (kernels.tier == kernels_portable()->tier) digest.add(all.y.data(), all.y.size() * 4);
  const std::vector<float> before = all.y;
  all.run(0, tiles, true);
  check(all.y[0] != before[0] && std::fabs(all.y[0] - 2 * before[0]) < 1e-3 * (1 + std::fabs(before[0])),
        (name + ": accumulate").c_str());
}

void poison(const Kernels& kernels) {
  Random random(5);
  const Weights weights(1, 64, 64, random);
  std::vector<float> x(3 * 64, 1.0f);
  x[64 + 5] = NAN;
  x[128 + 6] = INFINITY;
  Case all(kernels, 1, weights, x, 3);
  all.run(0, 2, false);
  check(std::isfinite(all.y[0]) && std::isnan(all.y[64]) && std::isnan(all.y[128]),
        "NaN and infinity spoil their own row, and only it");
}

}  // namespace

int main() {
  Digest digest;
  for (const Kernels* kernels : tiers()) {
    for (int format = 0; format < num_formats; ++format) {
      for (const int64_t n : {32, 40, 96}) {
        for (const int64_t k : {32, 64, 576}) {
          for (const int64_t rows : {1, 2, 5, 6, 7, 13, 64}) compare(*kernels, format, n, k, rows, digest);
        }
      }
      compare(*kernels, format, 64, 1536, 3, digest);
    }
    poison(*kernels);
  }
  return finish("linear", digest);
}
