// y = x W^T for weights stored as f16, bf16 or f32: one fp32 FMA chain for each output, in ascending k.
#include "simd.h"
#include "tier.h"

namespace gm::GM_TIER {
namespace {

template <Format kFormat>
struct Stored {
  using Type = uint16_t;
};
template <>
struct Stored<Format::f32> {
  using Type = float;
};

template <Format kFormat>
GM_INLINE float value_of(typename Stored<kFormat>::Type stored) {
  if constexpr (kFormat == Format::f16) return half_to_float(stored);
  if constexpr (kFormat == Format::bf16) return bf16_to_float(stored);
  if constexpr (kFormat == Format::f32) return stored;
}

GM_INLINE void finish(const float* y, const LinearArgs& args, int64_t row, int64_t channel) {
  const int64_t count = args.n - channel < tile_channels ? args.n - channel : tile_channels;
  float* out = args.y + row * args.ldy + channel;
  for (int64_t c = 0; c < count; ++c) {
    float value = y[c];
    if (args.bias) value += args.bias[channel + c];
    if (args.accumulate) value += out[c];
    out[c] = value;
  }
}

#if defined(GM_avx512)
template <Format kFormat>
GM_INLINE __m512 sixteen(const void* p) {
  if constexpr (kFormat == Format::f32) return _mm512_load_ps(p);
  const __m256i bits = _mm256_load_si256(static_cast<const __m256i*>(p));
  if constexpr (kFormat == Format::f16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

constexpr int rows_max = 8;

template <Format kFormat, int MR>
void tile_rows(const typename Stored<kFormat>::Type* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  __m512 y[MR][2];
  unroll<MR>([&](auto m) { y[m][0] = y[m][1] = _mm512_setzero_ps(); });
  const float* x = static_cast<const float*>(args.x) + row * args.ldx;
  for (int64_t k = 0; k < args.k; ++k, tile += tile_channels) {
    _mm_prefetch(reinterpret_cast<const char*>(tile) + 4096, _MM_HINT_T0);
    const __m512 w0 = sixteen<kFormat>(tile), w1 = sixteen<kFormat>(tile + 16);
    unroll<MR>([&](auto m) {
      const __m512 a = _mm512_set1_ps(x[m * args.ldx + k]);
      y[m][0] = _mm512_fmadd_ps(w0, a, y[m][0]);
      y[m][1] = _mm512_fmadd_ps(w1, a, y[m][1]);
    });
  }
  unroll<MR>([&](auto m) {
    alignas(64) float value[tile_channels];
    _mm512_store_ps(value, y[m][0]);
    _mm512_store_ps(value + 16, y[m][1]);
    finish(value, args, row + m, channel);
  });
}
#elif defined(GM_avx2)
template <Format kFormat>
GM_INLINE __m256 eight(const void* p) {
  if constexpr (kFormat == Format::f32) return _mm256_load_ps(static_cast<const float*>(p));
  const __m128i bits = _mm_load_si128(static_cast<const __m128i*>(p));
  if constexpr (kFormat == Format::f16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

constexpr int rows_max = 2;

template <Format kFormat, int MR>
void tile_rows(const typename Stored<kFormat>::Type* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  __m256 y[MR][4];
  unroll<MR>([&](auto m) { unroll<4>([&](auto q) { y[m][q] = _mm256_setzero_ps(); }); });
  const float* x = static_cast<const float*>(args.x) + row * args.ldx;
  for (int64_t k = 0; k < args.k; ++k, tile += tile_channels) {
    unroll<4>([&](auto q) {
      const __m256 w = eight<kFormat>(tile + 8 * q);
      unroll<MR>([&](auto m) { y[m][q] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[m * args.ldx + k]), y[m][q]); });
    });
  }
  unroll<MR>([&](auto m) {
    alignas(32) float value[tile_channels];
    unroll<4>([&](auto q) { _mm256_store_ps(value + 8 * q, y[m][q]); });
    finish(value, args, row + m, channel);
  });
}
#else
constexpr int rows_max = 1;

template <Format kFormat, int MR>
void tile_rows(const typename Stored<kFormat>::Type* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  static_assert(MR == 1);
  float y[tile_channels] = {};
  const float* x = static_cast<const float*>(args.x) + row * args.ldx;
  for (int64_t k = 0; k < args.k; ++k, tile += tile_channels) {
    for (int c = 0; c < tile_channels; ++c) y[c] += value_of<kFormat>(tile[c]) * x[k];
  }
  finish(y, args, row, channel);
}
#endif

template <Format kFormat, int MR>
GM_INLINE void run_rows(int count, const typename Stored<kFormat>::Type* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  if constexpr (MR > 1) {
    if (count < MR) return run_rows<kFormat, MR - 1>(count, tile, args, row, channel);
  }
  tile_rows<kFormat, MR>(tile, args, row, channel);
}

template <Format kFormat>
void linear(const LinearArgs& args) {
  using T = typename Stored<kFormat>::Type;
  const int64_t parts = (args.num_rows + rows_max - 1) / rows_max;
  for (int64_t t = args.tile_begin; t < args.tile_end; ++t) {
    const T* tile = reinterpret_cast<const T*>(args.weight) + t * args.k * tile_channels;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = args.num_rows * part / parts, end = args.num_rows * (part + 1) / parts;
      run_rows<kFormat, rows_max>(static_cast<int>(end - begin), tile, args, begin, t * tile_channels);
    }
  }
}

}  // namespace

void linear_f16(const LinearArgs& args) { linear<Format::f16>(args); }
void linear_bf16(const LinearArgs& args) { linear<Format::bf16>(args); }
void linear_f32(const LinearArgs& args) { linear<Format::f32>(args); }

}  // namespace gm::GM_TIER
