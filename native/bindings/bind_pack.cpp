#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

#include "../runtime/pack.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gm {
namespace {

using Packed = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowIds = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t num_tiles(int64_t n) { return (n + tile_channels - 1) / tile_channels; }

BlockType block_type(int number) {
  if (!is_block_type(number)) throw std::invalid_argument("no block type has the number " + std::to_string(number));
  return static_cast<BlockType>(number);
}

void check_size(const Packed& packed, Format format, int64_t n, int64_t k) {
  if (n < 1 || k < 1 || (is_quantized(format) && k % block_k != 0))
    throw std::invalid_argument("pack: a shape that cannot be packed");
  if (static_cast<int64_t>(packed.size()) != packed_bytes(format, n, k))
    throw std::invalid_argument("pack: the target has a wrong size");
}

void check_rows(const PublishedMatrix& matrix, int64_t num_source_rows, int64_t num_row_ids) {
  if (matrix.row_ids == nullptr) {
    if (matrix.n > num_source_rows) throw std::invalid_argument("pack: the source has too few rows");
    return;
  }
  if (num_row_ids != matrix.n) throw std::invalid_argument("pack: row_ids has a wrong length");
  for (int64_t i = 0; i < matrix.n; ++i) {
    if (matrix.row_ids[i] < 0 || matrix.row_ids[i] >= num_source_rows)
      throw std::invalid_argument("pack: a row id outside of the source");
  }
}

int64_t pack(int type, const Bytes& source, int64_t n, int64_t k, const Packed& packed, const std::optional<RowIds>& row_ids) {
  PublishedMatrix matrix{block_type(type), source.data(), row_ids ? row_ids->data() : nullptr, n, k};
  check_size(packed, packed_format(matrix.type), n, k);
  if (k % block_width(matrix.type) != 0) throw std::invalid_argument("pack: k is not a whole number of published blocks");
  check_rows(matrix, static_cast<int64_t>(source.size()) / row_bytes(matrix.type, k),
             row_ids ? static_cast<int64_t>(row_ids->size()) : 0);
  const nb::gil_scoped_release release;
  return pack_published(matrix, packed.data(), 0, num_tiles(n));
}

}  // namespace

void bind_pack(nb::module_& m) {
  m.def("pack", &pack, "type"_a, "source"_a, "n"_a, "k"_a, "packed"_a.noconvert(), "row_ids"_a = nb::none());
}

}  // namespace gm
