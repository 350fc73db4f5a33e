#include "proto/base/cgroup.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "proto/base/file_text.h"

namespace sluice {
namespace {

// The old hierarchies write "none" as a number near 2^63.
constexpr Bytes kNoLimit = GiB(1 << 20);

// "memory" in "cpu,memory".
bool NamesMemory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> MemoryLimitFiles(std::string_view proc_cgroup,
                                          const std::string& mounted) {
  std::vector<std::string> files;
  std::istringstream lines{std::string(proc_cgroup)};
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

std::optional<MemoryLimit> SmallestLimit(
    const std::vector<std::string>& files) {
  std::optional<MemoryLimit> smallest;
  for (const std::string& path : files) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (!(file >> limit) || limit <= 0 || Bytes(limit) >= kNoLimit) continue;
    if (!smallest || Bytes(limit) < smallest->most) {
      smallest = {Bytes(limit), path};
    }
  }
  return smallest;
}

std::optional<MemoryLimit> CgroupMemoryLimit(const std::string& process) {
  return SmallestLimit(MemoryLimitFiles(TextOf("/proc/" + process + "/cgroup"),
                                        "/sys/fs/cgroup"));
}

}  // namespace sluice
