// One alpha for all ranks of a job on a node (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

struct SwapChoice {
  double alpha = 0;
  std::string limited_by;  // "none", "bandwidth", "host", "flag"
  Bytes host_bytes;
  std::vector<std::string> why;  // of each class, one line
};

struct SwapPlan {
  std::vector<SwapChoice> ranks;  // as the profiles
  std::string infeasible;         // empty when feasible; else one line
  std::vector<plan::PlanLimit> limits;
};

// The node's LP (node_swap.h) with what today's runtime can do: it cuts all
// free classes of a chunk at one row, and k and v of a rank hold rows of all
// ranks, so the ranks of a job have one fraction, and keep nothing on the GPU.
// README.md says what that leaves out.
absl::StatusOr<SwapPlan> PlanSwap(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources);

}  // namespace sluice::planner
