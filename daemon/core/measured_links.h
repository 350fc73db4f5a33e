// What links were measured to carry, as an administrator has it kept, beside
// what the configuration says of them.
//
// The configuration wins, link by link: one that it gives a speed keeps that. A
// measurement is used as a whole or not at all, but for such links.
//
// Thread safety: pure functions, values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// Bytes per second; 0: no limit was found.
struct MeasuredLink {
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // of both directions together
  bool operator==(const MeasuredLink&) const = default;
};

struct MeasuredLinks {
  std::map<std::string, MeasuredLink> links;  // by name; not empty
  SetBy by;
  bool operator==(const MeasuredLinks&) const = default;
};

// Whether a node with the links `configured` could be run by them.
// InvalidArgument: nothing is in it, a link that the node does not have, a
// speed that is none. FailedPrecondition: beside what the configuration says of
// other links they make no tree (bandwidth::Topology::Make).
absl::Status CheckMeasured(const std::vector<LinkSpeed>& configured,
                           const MeasuredLinks& measured);

// The links that grants and plans go by. REQUIRES: CheckMeasured.
std::vector<LinkSpeed> LinksWith(const std::vector<LinkSpeed>& configured,
                                 const MeasuredLinks& measured);

}  // namespace sluice::daemon
