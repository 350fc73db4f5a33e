// What lies between a GPU and host memory.
//
// Speeds are bytes per second; 0: not limited. `direction` is kH2d or kD2h.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/bandwidth/topology.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// What the link carries in a direction while the other one rests.
double SpeedOf(const LinkSpeed& link, int direction);
// While both directions carry as much as each other.
double SpeedBothWays(const LinkSpeed& link, int direction);
// Whether it limits a direction, or both together.
bool IsLimited(const LinkSpeed& link);

// Indexes into `links`: that of `name`, the one it hangs on, and so on; empty:
// there is no `name`. A parent that is not there, or comes again, is the end.
std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name);

// Whether what is copied over the link `name` loads the link `other` too.
bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other);

// Link for link, in their order. InvalidArgument: bandwidth::Topology::Make.
absl::StatusOr<bandwidth::Topology> TopologyOf(
    const std::vector<LinkSpeed>& links);

}  // namespace sluice::daemon
