// Measured speeds of links, which an administrator told the daemon to keep. A
// link with a configured speed keeps that one. For all other links, a
// measurement is used as a whole or not at all. Pure functions, values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Bytes per second; 0: the measurement found no limit.
struct MeasuredLink {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // sum of both directions when both are in use
  bool operator==(const MeasuredLink&) const = default;
};

struct MeasuredLinks {
  std::map<std::string, MeasuredLink> links;  // by name; not empty
  SetBy by;
  bool operator==(const MeasuredLinks&) const = default;
};

// Checks a measurement for a node with the links `configured`.
// InvalidArgument: it is empty, names a link that the node does not have, or
// has an invalid speed. FailedPrecondition: together with the configured speeds
// of other links it makes no valid tree (bandwidth::Topology::Make).
absl::Status CheckMeasured(const std::vector<LinkSpeed>& configured,
                           const MeasuredLinks& measured);

// Returns the links that grants and plans use. REQUIRES: CheckMeasured.
std::vector<LinkSpeed> LinksWith(const std::vector<LinkSpeed>& configured,
                                 const MeasuredLinks& measured);

}  // namespace sluice::daemon
