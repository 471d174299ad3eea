#include "cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace gm {
namespace {

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

struct Hierarchy {
  std::string controllers;  // "" = v2
  std::string path;         // "/a/b"
};

std::vector<Hierarchy> read_hierarchies() {
  std::vector<Hierarchy> result;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    result.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return result;
}

bool lists_controller(const std::string& controllers, const std::string& name) {
  std::istringstream stream(controllers);
  for (std::string item; std::getline(stream, item, ',');) {
    if (item == name) return true;
  }
  return false;
}

// The group and its ancestors, innermost first. Inside a container the path in /proc may name the host's
// tree while only the container's own root is mounted; the root is therefore always tried.
std::vector<std::string> group_directories(const std::string& mount, const std::string& path) {
  std::vector<std::string> result;
  for (std::string rest = path; !rest.empty() && rest != "/"; rest = rest.substr(0, rest.rfind('/'))) {
    result.push_back(mount + rest);
  }
  result.push_back(mount);
  return result;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

int64_t read_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  for (int64_t value = 0; file >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

int64_t left_v2(const std::string& directory) {
  const int64_t limit = read_number(directory + "/memory.max");  // -1 for "max" or no file
  const int64_t usage = read_number(directory + "/memory.current");
  if (limit < 0 || usage < 0) return no_limit;
  return limit - usage + read_field(directory + "/memory.stat", "inactive_file");
}

int64_t left_v1(const std::string& directory) {
  const int64_t limit = read_number(directory + "/memory.limit_in_bytes");
  const int64_t usage = read_number(directory + "/memory.usage_in_bytes");
  if (limit < 0 || usage < 0 || limit > (int64_t{1} << 60)) return no_limit;
  return limit - usage + read_field(directory + "/memory.stat", "total_inactive_file");
}

int64_t machine_available() {
  std::istringstream text(read_text("/proc/meminfo"));
  std::string key;
  std::string unit;
  for (int64_t value = 0; text >> key >> value;) {
    std::getline(text, unit);
    if (key == "MemAvailable:") return value * 1024;
  }
  return no_limit;
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t result = machine_available();
  for (const Hierarchy& group : read_hierarchies()) {
    if (group.controllers.empty()) {
      for (const std::string& directory : group_directories("/sys/fs/cgroup", group.path)) {
        result = std::min(result, left_v2(directory));
      }
    } else if (lists_controller(group.controllers, "memory")) {
      for (const std::string& directory : group_directories("/sys/fs/cgroup/memory", group.path)) {
        result = std::min(result, left_v1(directory));
      }
    }
  }
  return std::max<int64_t>(result, 0);
}

}  // namespace gm
