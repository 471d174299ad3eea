// y = x W^T for weights stored as f16, bf16 or f32: one fp32 FMA chain for each output, in ascending k.
#include "tier.h"
#include "tile.h"

namespace gm::GM_TIER {
namespace {

// A register tile: up to rows_at_once rows x `wide` registers of channels. Few rows take more channels: then a tile is
// streamed through once.
#if defined(GM_avx512)
constexpr int rows_at_once = 12;
constexpr int wide_of(int) { return 2; }
#elif defined(GM_avx2)
constexpr int rows_at_once = 6;
constexpr int wide_of(int rows) { return rows <= 2 ? 4 : 2; }
#else
constexpr int rows_at_once = 2;
constexpr int wide_of(int rows) { return rows == 1 ? 8 : 4; }
#endif
constexpr int64_t prefetch_ahead_bytes = 4096;

template <Format kFormat>
constexpr int64_t element_bytes = kFormat == Format::f32 ? 4 : 2;

template <Format kFormat>
GM_INLINE Floats weights_at(const uint8_t* p) {
  if constexpr (kFormat == Format::f16) return halves(p);
  if constexpr (kFormat == Format::bf16) return brain_halves(p);
  return load(reinterpret_cast<const float*>(p));
}

// Registers of channels (V) and rows (M) are parameter packs: a loop over them would leave the sums in memory.
template <int... V>
GM_INLINE void clear(Floats (&y)[sizeof...(V)], std::integer_sequence<int, V...>) {
  ((y[V] = Floats{}), ...);
}

template <Format kFormat, int... V>
GM_INLINE void load_weights(Floats (&w)[sizeof...(V)], const uint8_t* p, std::integer_sequence<int, V...>) {
  ((w[V] = weights_at<kFormat>(p + V * num_lanes * element_bytes<kFormat>)), ...);
}

template <int... V>
GM_INLINE void add_products(Floats (&y)[sizeof...(V)], const Floats (&w)[sizeof...(V)], float x,
                            std::integer_sequence<int, V...>) {
  const Floats a = all(x);
  ((y[V] = multiply_add(w[V], a, y[V])), ...);
}

template <int... V>
GM_INLINE void store_all(float* out, const Floats (&y)[sizeof...(V)], std::integer_sequence<int, V...>) {
  (store(out + V * num_lanes, y[V]), ...);
}

// `weights`: the first channel of k = 0; each k is tile_channels elements further.
template <Format kFormat, int... M>
GM_INLINE void channels_of(const uint8_t* weights, const LinearArgs& args, int64_t row,
                           float (&values)[sizeof...(M)][tile_channels], int c) {
  constexpr int64_t step = tile_channels * element_bytes<kFormat>;
  constexpr int wide = wide_of(sizeof...(M));
  using Wide = std::make_integer_sequence<int, wide>;
  Floats y[sizeof...(M)][wide], w[wide];
  (clear(y[M], Wide{}), ...);
  const float* x = static_cast<const float*>(args.x) + row * args.ldx;
  Prefetch prefetch{weights + prefetch_ahead_bytes, step / 64};
  for (int64_t k = 0; k < args.k; ++k, weights += step) {
    fetch<step / 64>(prefetch);
    load_weights<kFormat>(w, weights, Wide{});
    (add_products(y[M], w, x[M * args.ldx + k], Wide{}), ...);
  }
  (store_all(values[M] + c, y[M], Wide{}), ...);
}

template <Format kFormat, int... M>
void tile_rows(std::integer_sequence<int, M...>, const uint8_t* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  alignas(64) float values[sizeof...(M)][tile_channels];
  for (int c = 0; c < tile_channels; c += wide_of(sizeof...(M)) * num_lanes) {
    channels_of<kFormat, M...>(tile + c * element_bytes<kFormat>, args, row, values, c);
  }
  (finish_row(values[M], args, args.y + (row + M) * args.ldy, channel), ...);
}

template <Format kFormat, int MR = rows_at_once>
void run_rows(int64_t count, const uint8_t* tile, const LinearArgs& args, int64_t row, int64_t channel) {
  if constexpr (MR > 1) {
    if (count < MR) return run_rows<kFormat, MR - 1>(count, tile, args, row, channel);
  }
  tile_rows<kFormat>(std::make_integer_sequence<int, MR>{}, tile, args, row, channel);
}

template <Format kFormat>
void linear(const LinearArgs& args) {
  const int64_t parts = (args.num_rows + rows_at_once - 1) / rows_at_once;
  const int64_t tile_bytes = args.k * tile_channels * element_bytes<kFormat>;
  for (int64_t t = args.tile_begin; t < args.tile_end; ++t) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = args.num_rows * part / parts, end = args.num_rows * (part + 1) / parts;
      run_rows<kFormat>(end - begin, args.weight + t * tile_bytes, args, begin, t * tile_channels);
    }
  }
}

}  // namespace

void linear_f16(const LinearArgs& args) { linear<Format::f16>(args); }
void linear_bf16(const LinearArgs& args) { linear<Format::bf16>(args); }
void linear_f32(const LinearArgs& args) { linear<Format::f32>(args); }

}  // namespace gm::GM_TIER
