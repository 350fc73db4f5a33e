// What this machine has, and what the daemon takes of it.
//
// Defaults where the configuration says nothing:
//   sim    made in `runtime_dir`/sim from [sim]; all of it goes to the pools
//   cuda   a GPU's pool is its memory but the larger of 1 GiB and 6 %, which
//          contexts and libraries need; the host pools are what may be
//          pinned of the machine's memory, or of its cgroup's limit (Pinnable,
//          proto/base/cgroup.h); its links are what sysfs tells (pci_links.h);
//          their speeds are not known but where [cuda] says
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
  // The simulated node's, unless ranks of an earlier daemon use it: then a
  // start that fails leaves it to them. Goes after the driver.
  OwnedFolder own_sim;
  std::unique_ptr<device::Driver> driver;
  NodeConfig config;
  std::string sim_directory;  // empty on cuda
  UniqueFd sim_clocks;        // of its links, for every session; none on cuda
  std::function<std::vector<HolderSnapshot>()> find_holders;  // null on cuda
  // Per GPU, the file that its users must be able to open; empty: not known.
  std::vector<std::string> gpu_nodes;
  // One line for the log: what was detected.
  std::string description;
};

// Driver `auto` simulates GPUs only where there is no NVIDIA device at all: a
// device with a driver that does not work is FailedPrecondition. `root` has the
// /dev, /proc and /sys that are looked at (nvidia.h).
absl::StatusOr<Node> OpenNode(const Config& config,
                              const std::string& runtime_dir,
                              const std::string& root = "");

}  // namespace sluice::daemon
