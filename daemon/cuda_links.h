// The links between a node's GPUs and its memory on cuda, and their speeds.
//
// A PCI device's folder in sysfs lies within the folder of the bridge above it.
// A switch is two bridges, one towards the host and one towards its devices. So
// from the GPU upwards, every second folder is the lower end of a link.
//
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/core/node/types.h"
#include "daemon/node.h"

namespace sluice::daemon {

// Returns the links above the devices at `addresses` ("0000:3b:00.0"), without
// speeds: each PCI link is named after the device below it, "pci-0000:3b:00.0";
// above these are "root-0000:3a" and "numa0". `root` is prefixed to /sys, for
// tests. Leaves out devices that sysfs does not list, and damaged entries.
std::vector<LinkSpeed> ReadPciLinks(const std::vector<std::string>& addresses,
                                    const std::string& root = "");

// Adds the links above the node's GPUs, with the speeds that [cuda] gives them,
// and describes each GPU's path and the limits in the node's description.
// InvalidArgument: [cuda] names a link that does not exist, or Topology::Make
// refuses the links.
absl::Status AddCudaLinks(const CudaSettings& cuda, const std::string& root,
                          Node& node);

}  // namespace sluice::daemon
