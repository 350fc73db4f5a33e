// The memory that a process may use: that of the machine, limited by its
// cgroups. `root` is the folder with /proc and /sys.
//
// Thread safety: reads the file system only.
#pragma once

#include <optional>
#include <string>

#include "proto/base/units.h"

namespace sluice {

struct MachineMemory {
  Bytes total, available;

  // Reads /proc/meminfo. Without it (subset=pid) reads sysinfo(2), which does
  // not count caches as available.
  static MachineMemory Read(const std::string& root = "");
};

// Returns how much of `memory` may be pinned: 0.9 of it or all but 64 GiB,
// whichever is less, and at least half.
Bytes Pinnable(Bytes memory);

struct MemoryLimit {
  Bytes most;
  std::string file;  // where the limit was read
};

// Returns the smallest current limit of a process ("self", "123"): that of its
// own group and of each group above, in cgroup v1 and v2. Returns nullopt also
// if it cannot be read.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self", const std::string& root = "");

}  // namespace sluice
