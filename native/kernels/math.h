// exp, tanh and the activations, of our own: no library call, so that the portable tier gives the same bits everywhere.
// The polynomials are least-squares fits, weighted towards the smallest largest relative error (given with each).
#pragma once
#include "lanes.h"

namespace gm::GM_TIER {
namespace {

constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

// Relative error below 2e-7 for -87 <= x <= 88; 0 below, infinite above; NaN stays NaN.
GM_INLINE Floats exp_of(Floats x) {
  const Floats lowest = all(-87.0f), highest = all(88.0f);
  Floats clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  const Floats shifted = multiply_add(clamped, all(1.44269504088896341f), round_magic);
  const Floats n = shifted - round_magic;
  // ln 2 in two parts; the first has few bits, so that its product with n is exact.
  Floats r = multiply_add(n, all(-0.693359375f), clamped);
  r = multiply_add(n, all(2.12194440e-4f), r);
  Floats p = multiply_add(all(1.3814459108e-3f), r, 8.3687812245e-3f);  // fit 3.1e-9
  p = multiply_add(p, r, 4.1668394380e-2f);
  p = multiply_add(p, r, 1.6666520099e-1f);
  p = multiply_add(p, r, 4.9999993412e-1f);
  p = multiply_add(p, r * r, r) + 1.0f;
  const Floats power = floats_of((bits_of(shifted) + 127u) << 23);
  const Floats value = x < lowest ? all(0.0f) : p * power;
  return x > highest ? floats_of(Bits{} + 0x7f800000u) : value;
}

// Odd, exact to 2e-7 relative, 0 included.
GM_INLINE Floats tanh_of(Floats x) {
  const Floats size = magnitude(x), square = x * x;
  Floats p = multiply_add(all(1.6437603714e-2f), square, -5.2671827373e-2f);  // fit 3.7e-8 up to 0.55
  p = multiply_add(p, square, 1.3320725318e-1f);
  p = multiply_add(p, square, -3.3332946651e-1f);
  const Floats near = multiply_add(p * square, x, x);
  const Floats far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
  return size < 0.55f ? near : floats_of(bits_of(far) | (bits_of(x) & 0x80000000u));
}

GM_INLINE Floats silu(Floats x) { return x / (exp_of(-x) + 1.0f); }

// x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) * (x + 0.044715 x^3).
GM_INLINE Floats gelu_tanh(Floats x) {
  const Floats cubic = multiply_add(x * x, x * 0.044715f, x);
  return x / (exp_of(cubic * -1.5957691216f) + 1.0f);
}

// x / 2 * (1 + erf(x / sqrt 2)) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt 2): so the negative side keeps its precision.
// erfc(z) = exp(-z^2) * P(1 / (1 + 0.4 z)); fit 5.4e-8 for z up to 9.
GM_INLINE Floats gelu(Floats x) {
  const Floats size = magnitude(x), z = size * 0.70710678118654752f;
  const Floats t = 1.0f / multiply_add(z, all(0.4f), 1.0f);
  Floats p = multiply_add(all(3.9142104221e-2f), t, -1.2989889292e-1f);
  p = multiply_add(p, t, 6.2094533006e-2f);
  p = multiply_add(p, t, 1.1347091418e-1f);
  p = multiply_add(p, t, 6.1778388784e-2f);
  p = multiply_add(p, t, 2.0122301018e-1f);
  p = multiply_add(p, t, 1.9983504367e-1f);
  p = multiply_add(p, t, 2.2673857189e-1f);
  p = multiply_add(p, t, 2.2561638015e-1f);
  const Floats tail = size * 0.5f * (p * t) * exp_of(size * size * -0.5f);
  return x > 0.0f ? x - tail : -tail;
}

}  // namespace
}  // namespace gm::GM_TIER
