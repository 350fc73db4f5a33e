// Reads the machine's NUMA nodes from /sys below `root`.
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
  bool has_cores = false;  // false for a node of CXL or GPU memory
};

// Returns the nodes ordered by number; empty if the kernel lists none.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// Returns the node's cores; empty if the kernel lists none.
cpu_set_t CoresOfNode(NumaIndex node, const std::string& root = "");
// Returns the cores of the node's socket, which may contain several NUMA nodes.
cpu_set_t CoresOfSocket(NumaIndex node, const std::string& root = "");

// Binds this thread, and the threads that it starts, to those of `cores` that
// it is allowed to run on. Does nothing if it may run on none of them.
void StayOn(const cpu_set_t& cores);

}  // namespace sluice
