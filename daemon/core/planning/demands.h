// Computes the bandwidth that ranks need to run by their plans (demands), and
// how much of it links can promise per direction. README.md has the rules.
//
// A plan hides a layer's copies behind the compute of one layer, in the forward
// and the backward pass (MEMO section 4.1). A rank needs the largest rate of
// all layers and passes: a layer's bytes divided by its time.
//
// Pure functions of saved state (members, sessions): a daemon that takes over
// computes the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/core/node/types.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::daemon {

// The fraction of each direction of a link that may be promised; each user may
// have an even part of it. The rest is for ranks without a promise, so that
// none of them stops.
inline constexpr double kPromised = 0.9;

// Returns the demand of a rank that runs by `plan`, the answer to `profile`.
PlanDemand DemandOf(const plan::RankProfile& profile,
                    const plan::RankPlan& plan);

struct LinkUser {  // an attached rank
  SessionId session;
  Principal principal;
  std::string link;  // the link of its GPU
  CopyRates demand = {0, 0};
};

// Returns the demands of `ranks` that can be promised, tried in their order. A
// direction is promised in full or not at all. Omits ranks without a promise.
std::map<SessionId, CopyRates> PromiseDemands(
    const std::vector<LinkSpeed>& links, const std::vector<LinkUser>& ranks);

}  // namespace sluice::daemon
