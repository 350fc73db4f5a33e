// One alpha a rank, for all ranks of a node at once (internal to the planner).
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

// The node's LP (node_swap.h) with what today's runtime can do: it cuts all
// free classes of a chunk at one row, so a rank has one fraction, and keeps
// nothing on the GPU. README.md says what that leaves out.
absl::StatusOr<SwapPlan> PlanSwap(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources);

}  // namespace sluice::planner
