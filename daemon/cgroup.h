// The memory limit of the cgroup this process is in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/units.h"

namespace sluice::daemon {

// The files that may limit a process with this /proc/self/cgroup: of its own
// group and of each above it, unified hierarchy or memory controller, below
// the mount point `mounted`.
std::vector<std::string> MemoryLimitFiles(std::string_view proc_self_cgroup,
                                          const std::string& mounted);

// The smallest limit in those of the files that there are; "max" is none.
// Limits::kUnlimited when none limits.
Bytes SmallestLimit(const std::vector<std::string>& files);

// Of this process, now.
Bytes CgroupMemoryLimit();

}  // namespace sluice::daemon
