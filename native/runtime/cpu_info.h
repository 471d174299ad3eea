// What this machine's processor is, and which kernel tiers it runs.
#pragma once
#include <string>
#include <vector>

namespace gm {

// "AMD EPYC ...", or the architecture's name if the kernel does not say.
std::string cpu_model();

// Tiers that are compiled in, slowest first.
std::vector<std::string> compiled_tiers();

// Features that `tier` needs and this CPU lacks; empty = the tier runs here.
std::vector<std::string> missing_features(const std::string& tier);

}  // namespace gm
