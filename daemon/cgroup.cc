#include "daemon/cgroup.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "daemon/core/types.h"

namespace sluice::daemon {
namespace {

// "memory" in "cpu,memory".
bool NamesMemory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> MemoryLimitFiles(std::string_view proc_self_cgroup,
                                          const std::string& mounted) {
  std::vector<std::string> files;
  std::istringstream lines{std::string(proc_self_cgroup)};
  for (std::string line; std::getline(lines, line);) {
    // hierarchy:controllers:path; no controllers is the unified one.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && !NamesMemory(controllers)) continue;
    const std::string root = unified ? mounted : mounted + "/memory";
    const std::string name = unified ? "/memory.max" : "/memory.limit_in_bytes";
    std::string group = line.substr(second + 1);
    while (true) {
      while (group.ends_with('/')) group.pop_back();
      files.push_back(root + group + name);
      if (group.empty()) break;
      group.resize(std::min(group.rfind('/'), group.size() - 1));
    }
  }
  return files;
}

Bytes SmallestLimit(const std::vector<std::string>& files) {
  Bytes smallest = Limits::kUnlimited;
  for (const std::string& path : files) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (file >> limit && limit > 0) smallest = std::min(smallest, Bytes(limit));
  }
  return smallest;
}

Bytes CgroupMemoryLimit() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream text;
  text << file.rdbuf();
  return SmallestLimit(MemoryLimitFiles(text.str(), "/sys/fs/cgroup"));
}

}  // namespace sluice::daemon
