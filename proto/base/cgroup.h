// Reads the machine's memory and the limits that cgroups set for a process.
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

// Returns how much of `memory` may be pinned: the smaller of 0.9 `memory` and
// `memory` - 64 GiB, but at least half of `memory`.
Bytes Pinnable(Bytes memory);

struct MemoryLimit {
  Bytes most;
  std::string file;  // the file that states the limit
};

// Returns the smallest limit that the cgroup (v1 or v2) of a process ("self",
// "123"), or any cgroup above it, has now. Returns nullopt if there is no limit
// or the limits cannot be read.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self", const std::string& root = "");

}  // namespace sluice
