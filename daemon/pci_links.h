// What lies between GPUs and host memory, as the kernel tells of the PCI bus:
// GPU, PCIe switches, root complex, NUMA node.
//
// A PCI device's folder in sysfs lies within that of the bridge above it. Of
// the bridges, every second one is the lower end of a link, from the device up:
// a switch is two bridges, one towards the host and one towards its devices,
// and the port above a link is the link's other end.
//
// Speeds are *rated*: what the slower end could do and the lanes that are in
// use, less the encoding. Nothing is measured, and packets take their part of
// it. The speed at which a link runs now is not asked first, because GPUs that
// have nothing to do slow theirs down.
//
// Thread safety: reads the file system only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/bandwidth/topology.h"

namespace sluice::daemon {

// Bytes per second and direction; 0: no such generation of PCIe, or no lanes.
double RatedPcieSpeed(double gigatransfers, int lanes);

struct PciLink {
  // Named after the device below it, "pci-0000:3b:00.0"; "root-0000:3a",
  // "numa0". Its speeds are rated; 0: not known.
  bandwidth::Link link;
  double gigatransfers = 0;  // per second and lane; 0: not known
  int lanes = 0;             // in use; 0: not known
  int most_lanes = 0;        // that both ends have; 0: not known
};

struct PciTopology {
  std::vector<PciLink> links;
  // Of each GPU that was asked for, its link; none: sysfs says nothing of it.
  std::vector<std::optional<int>> of_gpu;
};

// `addresses`: "0000:3b:00.0", one per GPU. `root` stands before /sys, for
// tests. What is missing or damaged is left out.
PciTopology ReadPciTopology(const std::vector<std::string>& addresses,
                            const std::string& root = "");

// "pci-0000:3d:00.0 (32 GT/s x16, rated 63.0 GB/s) on … on numa0".
std::string PathText(const PciTopology& topology, int link);

}  // namespace sluice::daemon
