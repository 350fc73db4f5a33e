// The machine's NUMA nodes, as the kernel tells in /sys below `root`.
//
// Thread safety: reads the file system only; StayOn is of the calling thread.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"

namespace sluice {

struct NumaNode {
  uint64_t number = 0;
  Bytes memory;
  bool has_cores = false;  // memory alone is CXL's, or a GPU's
};

// By number; empty: the kernel tells of none.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// Empty where the kernel tells none.
cpu_set_t CoresOfNode(NumaIndex node, const std::string& root = "");
// The cores of the node's socket, which may have several nodes.
cpu_set_t CoresOfSocket(NumaIndex node, const std::string& root = "");

// This thread, and those that it starts, run on those of `cores` that it may
// run on. It stays where it is if there are none.
void StayOn(const cpu_set_t& cores);

}  // namespace sluice
