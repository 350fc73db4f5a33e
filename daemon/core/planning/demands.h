// The bandwidth that ranks need to run by their plans (demands), and how much
// of it the links promise, per rank and direction.
//
// A plan hides a layer's copies behind one layer's compute, forward and
// backward (MEMO section 4.1), so each such window has bytes, a direction and a
// deadline. The largest quotient of bytes and window is the rate that the rank
// needs at all times.
//
// Not every demand can be promised. A link promises kPromised of each
// direction, and to one user an even part of that: profiles are clients'
// statements, and one that overstates takes from its own user only. Without a
// promise a rank runs by its fair share, as without a plan.
//
// Demands are derived from saved state (members, sessions): a daemon that takes
// over computes the same.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/core/node/types.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::daemon {

// The part of each direction of a link that may be promised in all: the rest is
// for ranks without a promise, so that none of them stops.
inline constexpr double kPromised = 0.9;

// Returns the demand of a rank that runs by `plan`, which answered `profile`.
PlanDemand DemandOf(const plan::RankProfile& profile,
                    const plan::RankPlan& plan);

// An attached rank as a user of links.
struct LinkUser {
  SessionId session;
  Principal principal;
  std::string link;  // its GPU's
  CopyRates demand = {0, 0};
};

// Returns the demands of `ranks` that can be promised, in order; each direction
// is promised whole or not at all. Ranks without a promise are not included.
std::map<SessionId, CopyRates> PromiseDemands(
    const std::vector<LinkSpeed>& links, const std::vector<LinkUser>& ranks);

}  // namespace sluice::daemon
