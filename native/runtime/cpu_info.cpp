#include "cpu_info.h"

#include <algorithm>
#include <fstream>

#include "../kernels/kernels.h"

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

}  // namespace

std::string cpu_model() {
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
