// The memory that a process may have: its machine's, and its cgroups' limit.
// `root` holds /proc and /sys.
//
// Thread safety: reads the file system only.
#pragma once

#include <optional>
#include <string>

#include "proto/base/units.h"

namespace sluice {

struct MachineMemory {
  Bytes total, available;

  // From /proc/meminfo. Where /proc does not have it (subset=pid), from
  // sysinfo(2), which counts caches as not available.
  static MachineMemory Read(const std::string& root = "");
};

// What of it may be pinned: 0.9, but all less 64 GiB where that is less, and of
// a small machine half.
Bytes Pinnable(Bytes memory);

struct MemoryLimit {
  Bytes most;
  std::string file;  // which says so
};

// The smallest limit of a process ("self", "123"), now: of its own group and of
// each above it, unified hierarchy or memory controller. None too where it
// cannot be read.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self", const std::string& root = "");

}  // namespace sluice
