// What ranks copy when they run by their plans, and how much of that the links
// promise them: demands, per rank and direction.
//
// A plan hides a layer's copies behind one layer's compute, forward and
// backward (MEMO section 4.1), so of each such window it says the bytes, the
// direction and the time by which they must be over. The largest quotient of
// bytes and window is the rate that the rank needs at all times.
//
// Not every demand can be promised. A link promises kPromised of each
// direction, and to one user an even part of that: profiles are what clients
// say, and one that says too much takes from the own user only. Without a
// promise a rank runs by its fair share, as without a plan.
//
// Demands are derived from what is saved already (members, sessions): a daemon
// that takes over comes to the same.
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

// Which part of each direction of a link may be promised in all: the rest is
// for ranks without a promise, so that none of them stops.
inline constexpr double kPromised = 0.9;

// What the copies of a rank need that runs by `plan`, which answered `profile`.
PlanDemand DemandOf(const plan::RankProfile& profile,
                    const plan::RankPlan& plan);

// An attached rank, as the links see it.
struct LinkUser {
  SessionId session;
  Principal principal;
  std::string link;  // its GPU's
  CopyRates demand = {0, 0};
};

// What is promised of the demands of `ranks`, each direction whole or not at
// all, the first ones first. Ranks that are promised nothing are not in it.
std::map<SessionId, CopyRates> PromiseDemands(
    const std::vector<LinkSpeed>& links, const std::vector<LinkUser>& ranks);

}  // namespace sluice::daemon
