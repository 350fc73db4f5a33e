// The links between a GPU and host memory. Pure functions.
//
// Speeds are bytes per second; 0: not limited. `direction` is kH2d or kD2h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/bandwidth/topology.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Returns the link's speed in one direction while the other direction is idle.
double SpeedOf(const LinkSpeed& link, int direction);
// Returns the link's speed per direction while both carry the same rate.
double SpeedBothWays(const LinkSpeed& link, int direction);
// Returns whether the link limits a direction, or both together.
bool IsLimited(const LinkSpeed& link);

// Returns indexes into `links`: the link `name`, its parent, and so on; empty
// if there is no `name`. The path ends at a missing or repeated parent.
std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name);

// Returns whether copies over the link `name` also load the link `other`.
bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other);

// Returns the topology of the links, in the same order. InvalidArgument as in
// bandwidth::Topology::Make.
absl::StatusOr<bandwidth::Topology> TopologyOf(
    const std::vector<LinkSpeed>& links);

}  // namespace sluice::daemon
