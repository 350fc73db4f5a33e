// What a rank shows with its Hello: that it may use GPUs.
#pragma once

#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"

namespace sluice::wire {

// At most so many are shown.
inline constexpr size_t kMaxShown = 32;

// The device nodes that this process can open for reading and writing: beside
// the daemon's `socket` that of the simulated GPU `gpu`; where GPUs are not
// simulated, `node`, or, if that is empty, /dev/nvidia0 and so on, since their
// numbers are not the daemon's. Each open may wake a GPU, which takes seconds.
std::vector<UniqueFd> OpenGpuNodes(const std::string& socket, DeviceIndex gpu,
                                   const std::string& node = "");

}  // namespace sluice::wire
