// exp, tanh and erf of our own: the same bits on every machine in the portable tier, and easy to vectorise in the others.
#pragma once
#include "simd.h"

namespace gm::GM_TIER {
namespace {

constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

// Relative error below 2e-7 in [-87, 88]; 0 below, a large finite number above; NaN stays NaN.
GM_INLINE float exp_float(float x) {
  const float lowest = -87.0f, highest = 88.0f;
  float clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  const float shifted = clamped * 1.44269504088896341f + round_magic;
  const float n = shifted - round_magic;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float scale = bits_to_float((float_to_bits(shifted) + 127u) << 23);
  const float value = p * scale;
  return x < lowest ? 0.0f : value;
}

GM_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }

GM_INLINE float tanh_float(float x) { return 1.0f - 2.0f / (1.0f + exp_float(2.0f * x)); }

// Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
GM_INLINE float erf_float(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float value = 1.0f - p * t * exp_float(-magnitude * magnitude);
  return x < 0.0f ? -value : value;
}

}  // namespace
}  // namespace gm::GM_TIER
