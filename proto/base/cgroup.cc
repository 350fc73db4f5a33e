#include "proto/base/cgroup.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "proto/base/file_text.h"

namespace sluice {
namespace {

// cgroup v1 writes "no limit" as a number near 2^63.
constexpr Bytes kNoLimit = GiB(1 << 20);

// Lowers `smallest` to the limit in the file `path`. The limit is the first
// word, or the word after `key`. "max" and cgroup v1's largest number are no
// limit.
void Lower(std::optional<MemoryLimit>& smallest, const std::string& path,
           const std::string& key = "") {
  std::ifstream file(path);
  for (std::string word; word != key && file >> word;) {
  }
  int64_t limit = 0;
  if (!(file >> limit) || limit <= 0 || Bytes(limit) >= kNoLimit) return;
  if (!smallest || Bytes(limit) < smallest->most) {
    smallest = {Bytes(limit), path};
  }
}

// Lowers `smallest` to the limits of the group at `path` below `mounted` and of
// all groups above it. In a container the mount begins at the container's
// group, while `path` still names the folders above it.
void LowerByGroups(std::optional<MemoryLimit>& smallest,
                   const std::string& mounted, std::string path,
                   const std::string& file) {
  while (path.ends_with('/')) path.pop_back();
  std::error_code hidden;
  while (!path.empty() && !std::filesystem::exists(mounted + path, hidden)) {
    path.erase(0, std::min(path.find('/', 1), path.size()));
  }
  const std::string own = mounted + path;
  for (; !path.empty(); path.resize(path.rfind('/'))) {
    Lower(smallest, mounted + path + file);
  }
  Lower(smallest, mounted + file);
  // In cgroup v1, memory.stat states the limits of groups above the mount.
  Lower(smallest, own + "/memory.stat", "hierarchical_memory_limit");
}

}  // namespace

MachineMemory MachineMemory::Read(const std::string& root) {
  struct sysinfo info = {};
  sysinfo(&info);
  const auto bytes = [&](uint64_t units) {
    return Bytes(static_cast<int64_t>(units * info.mem_unit));
  };
  MachineMemory memory{bytes(info.totalram), bytes(info.freeram)};
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total = KiB(kib);
    if (key == "MemAvailable:") memory.available = KiB(kib);
  }
  return memory;
}

Bytes Pinnable(Bytes memory) {
  return std::max(memory / 2,
                  std::min(Bytes(memory.count() / 10 * 9), memory - GiB(64)));
}

std::optional<MemoryLimit> CgroupMemoryLimit(const std::string& process,
                                             const std::string& root) {
  std::optional<MemoryLimit> smallest;
  std::istringstream lines(TextOf(root + "/proc/" + process + "/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    // A line is hierarchy:controllers:path. The unified hierarchy has no
    // controllers.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const std::string mounted = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      LowerByGroups(smallest, mounted, path, "/memory.max");
    } else if (("," + controllers + ",").find(",memory,") != controllers.npos) {
      LowerByGroups(smallest, mounted + "/memory", path,
                    "/memory.limit_in_bytes");
    }
  }
  return smallest;
}

}  // namespace sluice
