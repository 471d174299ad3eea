// What this machine's processor can do, and how much of it this process may use.
#pragma once
#include <string>
#include <vector>

namespace gm {

struct CpuInfo {
  std::string model;                  // "AMD EPYC", or the architecture's name if the kernel does not say
  std::vector<std::string> features;  // of those that any tier asks for, the ones this CPU and kernel have
  int usable_cores;                   // physical cores within affinity and cgroup quota; at least 1
};

CpuInfo read_cpu_info();

// Tiers that are compiled in, slowest first.
std::vector<std::string> compiled_tiers();

// Features that `tier` needs and this CPU lacks; empty = the tier runs here.
std::vector<std::string> missing_features(const std::string& tier);

}  // namespace gm
