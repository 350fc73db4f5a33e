// Reads the machine's memory and the limits that cgroups set to a process.
// `root` is the folder that contains /proc and /sys.
#pragma once

#include <optional>
#include <string>

#include "proto/base/units.h"

namespace sluice {

struct MachineMemory {
  Bytes total, available;

  // Reads /proc/meminfo. If the file is missing (/proc is mounted with
  // subset=pid), reads sysinfo(2), which does not count caches as available.
  static MachineMemory Read(const std::string& root = "");
};

// Returns how much of `memory` may be pinned: the smaller of 0.9 of it and all
// but 64 GiB, but at least half.
Bytes Pinnable(Bytes memory);

struct MemoryLimit {
  Bytes most;
  std::string file;  // the file that states the limit
};

// Returns the smallest current limit of a process ("self", "123"), among its
// group and all groups above, in cgroup v1 and v2. Returns nullopt if there is
// no limit or it cannot be read.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self", const std::string& root = "");

}  // namespace sluice
