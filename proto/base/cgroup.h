// The memory limit of the cgroup that a process is in.
//
// Thread safety: reads the file system only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/units.h"

namespace sluice {

// The files that may limit a process with this /proc/PID/cgroup: of its own
// group and of each above it, unified hierarchy or memory controller, below
// the mount point `mounted`.
std::vector<std::string> MemoryLimitFiles(std::string_view proc_cgroup,
                                          const std::string& mounted);

struct MemoryLimit {
  Bytes most;
  std::string file;  // which says so
};
// The smallest limit in those of the files that there are; "max", and the
// largest number of the old hierarchies, is none.
std::optional<MemoryLimit> SmallestLimit(const std::vector<std::string>& files);

// Of a process ("self", "123"), now; none too where it cannot be read.
std::optional<MemoryLimit> CgroupMemoryLimit(
    const std::string& process = "self");

}  // namespace sluice
