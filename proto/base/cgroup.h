// The memory limit of the cgroups that a process is in.
//
// Thread safety: reads the file system only.
#pragma once

#include <optional>
#include <string>

#include "proto/base/units.h"

namespace sluice {

struct MemoryLimit {
  Bytes most;
  std::string file;  // which says so
};

// The smallest limit of a process ("self", "123"), now: of its own group and of
// each above it, unified hierarchy or memory controller. None too where it
// cannot be read. `root` holds /proc and /sys.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self", const std::string& root = "");

}  // namespace sluice
