#include "cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "../kernels/kernels.h"
#include "cgroup.h"

namespace gm {
namespace {

struct Feature {
  const char* name;
  bool is_present;
};

#if defined(__x86_64__)
// __builtin_cpu_supports also asks the kernel (XGETBV) whether it saves the wide registers.
std::vector<Feature> all_features() {
  __builtin_cpu_init();
  return {
      {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"f16c", __builtin_cpu_supports("f16c") != 0},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vbmi", __builtin_cpu_supports("avx512vbmi") != 0},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
  };
}
#else
std::vector<Feature> all_features() { return {}; }
#endif

std::vector<std::string> needed_features(const std::string& tier) {
  if (tier == "portable") return {};
  std::vector<std::string> needed = {"avx2", "fma", "f16c"};
  if (tier == "avx2") return needed;
  for (const char* name : {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512vnni"}) {
    needed.push_back(name);
  }
  return needed;
}

std::string read_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
#if defined(__aarch64__)
  return "arm64";
#else
  return "x86-64";
#endif
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Hardware threads of one core count once: two of them do not make a memory-bound loop faster.
int physical_cores_in_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string siblings =
        read_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

}  // namespace

CpuInfo read_cpu_info() {
  CpuInfo info;
  info.model = read_model();
  for (const Feature& feature : all_features()) {
    if (feature.is_present) info.features.push_back(feature.name);
  }
  const double quota = cgroup_cpu_quota();
  info.usable_cores = physical_cores_in_affinity();
  if (quota > 0) info.usable_cores = std::clamp(static_cast<int>(std::floor(quota)), 1, info.usable_cores);
  return info;
}

std::vector<std::string> compiled_tiers() {
  std::vector<std::string> tiers;
  for (const Kernels* kernels : {kernels_portable(), kernels_avx2(), kernels_avx512()}) {
    if (kernels != nullptr) tiers.push_back(kernels->tier);
  }
  return tiers;
}

std::vector<std::string> missing_features(const std::string& tier) {
  std::vector<std::string> missing;
  const std::vector<Feature> features = all_features();
  for (const std::string& name : needed_features(tier)) {
    const bool is_present =
        std::any_of(features.begin(), features.end(), [&](const Feature& f) { return f.name == name && f.is_present; });
    if (!is_present) missing.push_back(name);
  }
  return missing;
}

}  // namespace gm
