// What the daemon asks its plan worker: the profiles of all local ranks of all
// jobs planned together and what the node can give them. Plain data; thread
// safety: values.
#pragma once

#include <optional>
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
  std::vector<size_t> profiles;     // that copy over it, by position
  // Both directions together, > 0; nullopt: no limit beside the two.
  std::optional<double> both_bytes_per_second = std::nullopt;
  bool operator==(const LinkCapacity&) const = default;
};

// Host memory that some ranks hold together at most: "host of NUMA node 0",
// "host budget of job x". A rank may be in several.
struct HostLimit {
  std::string name;
  Bytes bytes;
  std::vector<size_t> profiles;  // by position
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
  std::vector<UnitPlan> known;  // units of them that were planned before
};

}  // namespace sluice::plan
