// What the ranks of a node keep, swap and recompute, class by class, as the
// runtime can do it (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// What a rank's plan says of fractions, under the names of plan::RankPlan.
struct RankFractions {
  std::vector<plan::ClassPlan> classes;  // as the profile's
  double alpha = 0;
  std::string alpha_limited_by;
  Bytes host_bytes;
};

struct FractionsPlan {
  std::vector<RankFractions> ranks;  // as the profiles
  std::string infeasible;            // empty when feasible; else one line
  std::string limited_by = "none";   // NodePlan::limited_by
  std::vector<plan::PlanLimit> limits;
};

// One LP (node_swap.h) over all profiles, of whichever jobs: shared classes of
// a job have one fraction, what was asked for is kept to, settled ranks are
// fixed. What is chosen is a multiple of 1/4096, and host limits and
// `gpu_room` hold to the byte. `gpu_room` of a rank: what it may keep on its
// GPU beside its transient buffers.
absl::StatusOr<FractionsPlan> PlanFractions(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources, const std::vector<Bytes>& gpu_room);

// InvalidArgument, one line: a rank with two profiles, asks that contradict
// each other, a settled profile with something left to choose, positions that
// are none.
absl::Status CheckProfiles(const std::vector<plan::RankProfile>& profiles,
                           const plan::NodeResources& resources);

}  // namespace sluice::planner
