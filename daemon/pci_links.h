// The PCI links between GPUs and host memory, from sysfs: GPU, PCIe switches,
// root complex, NUMA node.
//
// A PCI device's folder in sysfs lies within that of the bridge above it.
// Counted from the device up, every second bridge is the lower end of a link: a
// switch is two bridges, one towards the host and one towards its devices, and
// the port above a link is the link's other end.
//
// Thread safety: reads the file system only.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Returns the links above the devices at `addresses` ("0000:3b:00.0"), without
// speeds. Each is named after the device below it, "pci-0000:3b:00.0"; above
// those are "root-0000:3a" and "numa0". `root` is prefixed to /sys, for tests.
// Devices that sysfs does not list have no link, and damaged entries are left
// out.
std::vector<LinkSpeed> ReadPciLinks(const std::vector<std::string>& addresses,
                                    const std::string& root = "");

}  // namespace sluice::daemon
