// Rotary embedding and the writing of keys and values into their pages.
#include "simd.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

// sin and cos in double with our own polynomials (Taylor to the 17th and 16th power on [-pi/4, pi/4], error below 1e-15), so
// that the bits do not depend on a library. The reduction subtracts multiples of pi/2 in three parts: good to 2^20 turns.
GM_INLINE void sin_cos(double x, double& sin, double& cos) {
  const double shifted = x * 0.63661977236758134308 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  double r = x - n * 1.57079632673412561417;
  r = r - n * 6.07710050630396597660e-11;
  r = r - n * 2.02226624879595063154e-21;
  const double s = r * r;
  double a = 2.8114572543455206e-15;
  a = a * s - 7.6471637318198164e-13;
  a = a * s + 1.6059043836821613e-10;
  a = a * s - 2.5052108385441718e-08;
  a = a * s + 2.7557319223985893e-06;
  a = a * s - 1.9841269841269841e-04;
  a = a * s + 8.3333333333333333e-03;
  a = a * s - 1.6666666666666666e-01;
  a = r + r * s * a;
  double b = 4.7794773323873853e-14;
  b = b * s - 1.1470745597729725e-11;
  b = b * s + 2.0876756987868099e-09;
  b = b * s - 2.7557319223985891e-07;
  b = b * s + 2.4801587301587302e-05;
  b = b * s - 1.3888888888888889e-03;
  b = b * s + 4.1666666666666664e-02;
  b = b * s - 0.5;
  b = 1.0 + s * b;
  const int quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
  const double first = quadrant & 1 ? b : a, second = quadrant & 1 ? a : b;
  sin = quadrant & 2 ? -first : first;
  cos = (quadrant == 1 || quadrant == 2) ? -second : second;
}

// The head at `x`, rotated, into `out` [head_dim] (may be x).
GM_INLINE void rotate(const float* x, const float* cos, const float* sin, int32_t half, int32_t head_dim, float* out) {
  for (int32_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
  for (int32_t i = 2 * half; i < head_dim; ++i) out[i] = x[i];
}

GM_INLINE void store_token(const KvView& kv, int32_t slot, int32_t head, const float* k, const float* v) {
  const int32_t block = slot / page_tokens, offset = slot % page_tokens, head_dim = kv.head_dim;
  const int32_t mask = (1 << kv.slab_shift) - 1;
  uint8_t* page = kv.pool + (block >> kv.slab_shift) * kv.slab_bytes + kv.layer_offset + (block & mask) * kv.page_bytes;
  auto* keys = reinterpret_cast<uint16_t*>(page + int64_t{head} * head_dim * page_tokens * 4);
  uint16_t* values = keys + head_dim * page_tokens;
  for (int32_t d = 0; d < head_dim; ++d) {
    keys[(d / 2 * 2 + offset / 16) * 32 + offset % 16 * 2 + d % 2] = float_to_bf16(k[d]);
    values[(offset / 2 * head_dim + d) * 2 + offset % 2] = float_to_bf16(v[d]);
  }
}

}  // namespace

void rope_table(const RopeTableArgs& args) {
  for (int64_t t = args.token_begin; t < args.token_end; ++t) {
    for (int32_t i = 0; i < args.half; ++i) {
      double sin, cos;
      sin_cos(static_cast<double>(args.positions[t]) * args.inv_freq[i], sin, cos);
      args.cos[t * args.half + i] = static_cast<float>(cos * args.attention_factor);
      args.sin[t * args.half + i] = static_cast<float>(sin * args.attention_factor);
    }
  }
}

void rope_store(const RopeStoreArgs& args) {
  const int32_t head_dim = args.kv.head_dim, units_per_token = args.num_heads + args.kv.num_kv_heads;
  for (int64_t unit = args.unit_begin; unit < args.unit_end; ++unit) {
    const int64_t t = unit / units_per_token;
    const auto head = static_cast<int32_t>(unit % units_per_token);
    const float* cos = args.rope.cos + t * args.rope.half;
    const float* sin = args.rope.sin + t * args.rope.half;
    if (head < args.num_heads) {
      float* q = args.q + t * args.ldq + head * head_dim;
      rotate(q, cos, sin, args.rope.half, head_dim, q);
      continue;
    }
    const int32_t kv_head = head - args.num_heads;
    float k[256];
    rotate(args.k + t * args.ldk + kv_head * head_dim, cos, sin, args.rope.half, head_dim, k);
    store_token(args.kv, args.slot_mapping[t], kv_head, k, args.v + t * args.ldv + kv_head * head_dim);
  }
}

}  // namespace gm::GM_TIER
