// The daemon's request to its plan worker: the profiles of all local ranks of
// the jobs that are planned together, and the resources of the node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"
#include "proto/plan/units.h"

namespace sluice::plan {

// A link between host and GPUs, with speeds measured under contention. A rank
// may copy over several links, such as its own PCIe port and a shared switch.
struct LinkCapacity {
  std::string name;
  double h2d_bytes_per_second = 0;  // > 0
  double d2h_bytes_per_second = 0;  // > 0
  std::vector<size_t> profiles;  // positions of ranks in PlanRequest::profiles
  // Limit of the sum of both directions, > 0, besides the limit of each.
  std::optional<double> both_bytes_per_second = std::nullopt;
  bool operator==(const LinkCapacity&) const = default;
};

// A limit on the host memory that some ranks hold together: "host of NUMA node
// 0", "host budget of job x". A rank may be subject to several limits.
struct HostLimit {
  std::string name;
  Bytes bytes;
  std::vector<size_t> profiles;  // positions in PlanRequest::profiles
  bool operator==(const HostLimit&) const = default;
};

struct NodeResources {
  std::vector<LinkCapacity> links;
  std::vector<HostLimit> hosts;
  bool operator==(const NodeResources&) const = default;
};

struct PlanRequest {
  std::vector<RankProfile> profiles;
  NodeResources resources;
  std::vector<UnitPlan> known;  // units that earlier plans have solved
};

}  // namespace sluice::plan
