// Detects what this machine has, and how much of it the daemon uses.
//
// Defaults for what the configuration leaves open:
//
//   sim    The pools have all memory of the node that [sim] describes.
//   cuda   A GPU's pool is its memory less the larger of 1 GiB and 6 %, which
//          contexts and libraries need. The host pools share what may be pinned
//          (Pinnable, proto/base/cgroup.h) of the machine's memory, or of the
//          limit of the daemon's cgroup if that is less.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config.h"
#include "daemon/core/node/types.h"
#include "daemon/core/snapshot.h"
#include "daemon/runtime/runtime_dir.h"
#include "kernels/device/driver.h"

namespace sluice::daemon {

struct Node {
  // The folder of a simulated node that this start made. Empty if ranks of an
  // earlier daemon use the node. Destroyed after the driver.
  OwnedFolder own_sim;
  std::unique_ptr<device::Driver> driver;
  NodeConfig config;
  std::string sim_directory;  // empty on cuda
  UniqueFd sim_clocks;  // of simulated links, for every session; empty on cuda
  std::function<std::vector<HolderSnapshot>()> find_holders;  // null on cuda
  // Each GPU's device file, which its ranks must be able to open; empty:
  // unknown.
  std::vector<std::string> gpu_nodes;
  std::string description;
};

// Driver `auto` simulates GPUs only if the machine has no NVIDIA device.
// FailedPrecondition: it has one, but its driver does not work. `root` is
// prefixed to /dev, /proc and /sys (nvidia.h).
absl::StatusOr<Node> OpenNode(const Config& config,
                              const std::string& runtime_dir,
                              const std::string& root = "");

}  // namespace sluice::daemon
