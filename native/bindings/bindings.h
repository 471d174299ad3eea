// The Python module gristmill._native, in parts. src/gristmill/_native.pyi is its contract.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "../kernels/kernels.h"

namespace gm {

using Bytes = nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The kernels of a tier that this CPU runs; throws std::invalid_argument.
const Kernels* find_kernels(const std::string& tier);

// The format of this number; throws std::invalid_argument.
Format format_of(int number);

void bind_runtime(nanobind::module_& m);  // cpu_info, memory, ThreadPool, KvArena
void bind_pack(nanobind::module_& m);     // packing of weights
void bind_plan(nanobind::module_& m);     // Plan: building
void bind_step(nanobind::handle plan);    // Plan.step

}  // namespace gm
