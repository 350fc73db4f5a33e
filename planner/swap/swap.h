// MEMO's alpha for all ranks of a node at once (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

struct SwapChoice {
  double alpha = 0;
  std::string limited_by;  // "none", "bandwidth", "host", "flag"
  Bytes host_bytes;
};

struct SwapPlan {
  std::vector<SwapChoice> ranks;  // as the profiles
  std::string infeasible;         // empty when feasible; else one line
};

// Max-min fair: the smallest alpha of the ranks that may choose is as large
// as can be, then the next smallest, and so on (all ranks of a step wait for
// the slowest). Each solved as an LP; see README.md for the rows.
absl::StatusOr<SwapPlan> PlanSwap(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources);

}  // namespace sluice::planner
