// Detects what this machine has, and how much of it the daemon uses.
//
// Defaults for what the configuration leaves open:
//   sim    The node is made in `runtime_dir`/sim from [sim]; the pools have all
//          of its memory.
//   cuda   A GPU's pool is its memory less the larger of 1 GiB and 6 %, which
//          contexts and libraries need. The host pools share what may be pinned
//          of the machine's memory or its cgroup's limit (Pinnable,
//          proto/base/cgroup.h). Links are read from sysfs (cuda_links.h);
//          their speeds are unknown unless [cuda] gives them.
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
  // The folder of the simulated node. Empty if ranks of an earlier daemon use
  // the node: a failed start then leaves it to them. Destroyed after the
  // driver.
  OwnedFolder own_sim;
  std::unique_ptr<device::Driver> driver;
  NodeConfig config;
  std::string sim_directory;  // empty on cuda
  UniqueFd sim_clocks;  // of simulated links, for every session; empty on cuda
  std::function<std::vector<HolderSnapshot>()> find_holders;  // null on cuda
  // For each GPU, the device file that its users must be able to open; empty:
  // unknown.
  std::vector<std::string> gpu_nodes;
  // One line for the log that says what was detected.
  std::string description;
};

// Opens the driver and detects the node. Driver `auto` simulates GPUs only if
// the machine has no NVIDIA device. FailedPrecondition: it has one, but the
// driver does not work. `root` is prefixed to /dev, /proc and /sys (nvidia.h).
absl::StatusOr<Node> OpenNode(const Config& config,
                              const std::string& runtime_dir,
                              const std::string& root = "");

// Makes the node in `directory`, which `node` then owns. If ranks of an earlier
// daemon use a node there, that node stays as it is and is not owned. Opens the
// node's driver, and adds its links and NUMA nodes to `node`. InvalidArgument:
// the links of [sim] make no tree. Other errors are those of
// device::CreateSimNode.
absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node);

}  // namespace sluice::daemon
