#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "../runtime/cgroup.h"
#include "../runtime/cpu_info.h"
#include "../runtime/kv_arena.h"
#include "../runtime/memory.h"
#include "../runtime/thread_pool.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gm {

const Kernels* find_kernels(const std::string& tier) {
  if (!missing_features(tier).empty()) throw std::invalid_argument("this CPU cannot run tier " + tier);
  for (const Kernels* kernels : {kernels_portable(), kernels_avx2(), kernels_avx512()}) {
    if (kernels != nullptr && tier == kernels->tier) return kernels;
  }
  throw std::invalid_argument("no tier is called " + tier);
}

Format format_of(int number) {
  if (number < 0 || number >= num_formats) throw std::invalid_argument("no format has this number");
  return static_cast<Format>(number);
}

namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> aligned_empty(int64_t num_bytes) {
  static ChunkAllocator allocator;
  if (num_bytes < 0) throw std::invalid_argument("aligned_empty: a negative number of bytes");
  auto* allocation = new Allocation(allocator.allocate(num_bytes));
  nb::capsule owner(allocation, [](void* p) noexcept { delete static_cast<Allocation*>(p); });
  return {allocation->data, {static_cast<size_t>(num_bytes)}, owner};
}

void copy_blocks(KvArena& arena, const Ids& source_ids, const Ids& target_ids) {
  if (source_ids.size() != target_ids.size()) throw std::invalid_argument("copy_blocks: unequal numbers of ids");
  for (const Ids* ids : {&source_ids, &target_ids}) {
    for (size_t i = 0; i < ids->size(); ++i) {
      const int32_t id = ids->data()[i];
      if (id < 0 || id >= arena.num_committed_blocks()) {
        throw std::invalid_argument("copy_blocks: block " + std::to_string(id) + " is not committed");
      }
    }
  }
  const nb::gil_scoped_release release;
  arena.copy_blocks(source_ids.data(), target_ids.data(), static_cast<int64_t>(source_ids.size()));
}

std::shared_ptr<KvArena> make_arena(int num_layers, int num_kv_heads, int head_dim, int64_t num_blocks, int64_t reserve_bytes) {
  if (num_layers < 1 || num_kv_heads < 1 || num_blocks < 1) throw std::invalid_argument("KvArena: sizes must be positive");
  return std::make_shared<KvArena>(KvShape{num_layers, num_kv_heads, head_dim}, num_blocks, reserve_bytes);
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def("cpu_model", &cpu_model);
  m.def("compiled_tiers", &compiled_tiers);
  m.def("missing_features", &missing_features, "tier"_a);
  m.def("available_memory_bytes", &available_memory_bytes);
  m.def("aligned_empty", &aligned_empty, "num_bytes"_a);
  m.def(
      "quantized_bytes",
      [](const std::string& tier, int64_t num_rows, int64_t k) { return find_kernels(tier)->quantized_bytes(num_rows, k); },
      "tier"_a, "num_rows"_a, "k"_a);
  m.def(
      "sample_scratch_bytes",
      [](const std::string& tier, int64_t vocab_size) { return find_kernels(tier)->sample_scratch_bytes(vocab_size); }, "tier"_a,
      "vocab_size"_a);

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::new_([](int num_threads) {
             if (num_threads < 1) throw std::invalid_argument("ThreadPool: at least one thread");
             return std::make_shared<ThreadPool>(num_threads);
           }),
           "num_threads"_a)
      .def_prop_ro("size", &ThreadPool::size);

  nb::class_<KvArena>(m, "KvArena")
      .def(nb::new_(&make_arena), nb::kw_only(), "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "num_blocks"_a,
           "reserve_bytes"_a)
      .def_prop_ro("num_committed_blocks", &KvArena::num_committed_blocks)
      .def_prop_ro("is_short_of_memory", &KvArena::is_short_of_memory)
      .def_prop_ro("blocks_per_slab", &KvArena::blocks_per_slab)
      .def("request_blocks", &KvArena::request_blocks, "count"_a)
      .def("commit_now", &KvArena::commit_now, "count"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("release", &KvArena::release)
      .def("copy_blocks", &copy_blocks, "source_ids"_a, "target_ids"_a);
}

}  // namespace gm
