// The device nodes that a rank sends with its Hello to prove that it may use
// GPUs.
#pragma once

#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"

namespace sluice::wire {

// The most device nodes that a Hello may carry.
inline constexpr size_t kMaxShown = 32;

// Opens the device nodes that this process can open for reading and writing:
// of simulated GPUs the node of `gpu` in the folder of the daemon's `socket`,
// of real GPUs `node`, or all of /dev/nvidia0 and so on if that is empty,
// because the daemon numbers GPUs differently. Each open may wake a GPU, which
// takes seconds.
std::vector<UniqueFd> OpenGpuNodes(const std::string& socket, DeviceIndex gpu,
                                   const std::string& node = "");

}  // namespace sluice::wire
