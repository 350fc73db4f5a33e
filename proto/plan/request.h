// What the daemon asks its plan worker: the profiles of all local ranks of a
// job and what the node can give them. Plain data; thread safety: values.
#pragma once

#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"
#include "proto/plan/units.h"

namespace sluice::plan {

// A link between host and GPUs (measured, contended). A rank may copy over
// several (its own PCIe port, a switch it shares).
struct LinkCapacity {
  std::string name;
  double h2d_bytes_per_second = 0;  // > 0
  double d2h_bytes_per_second = 0;  // > 0
  std::vector<Rank> ranks;          // that copy over it
};

struct NodeResources {
  std::vector<LinkCapacity> links;
  // What these ranks may take together of NUMA node i; a negative entry, or
  // a node beyond the list, has no limit.
  std::vector<Bytes> host_budget;
};

struct PlanRequest {
  std::vector<RankProfile> profiles;
  NodeResources resources;
  std::vector<UnitPlan> known;  // units of them that were planned before
};

}  // namespace sluice::plan
