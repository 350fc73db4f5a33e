// Plans what the ranks of a node keep, swap and recompute, class by class, in
// fractions that the runtime can use (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// The chosen fractions of a rank, with plan::RankPlan's field names.
struct RankFractions {
  std::vector<plan::ClassPlan> classes;  // in the profile's order
  double alpha = 0;
  std::string alpha_limited_by;
  Bytes host_bytes;
};

struct FractionsPlan {
  std::vector<RankFractions> ranks;  // in the order of the profiles
  std::string infeasible;            // empty if feasible, else one line
  std::string limited_by = "none";   // NodePlan::limited_by
  std::vector<plan::PlanLimit> limits;
};

// Solves one LP (node_swap.h) over the profiles of all jobs. Shared classes of
// a job get one fraction; requested fractions are obeyed; settled ranks do not
// change. Chosen fractions are multiples of 1/4096, and the host limits and
// `gpu_room` hold to the byte. `gpu_room`: the bytes that each rank may keep on
// its GPU in addition to its transient buffers.
absl::StatusOr<FractionsPlan> PlanFractions(
    const std::vector<plan::RankProfile>& profiles,
    const plan::NodeResources& resources, const std::vector<Bytes>& gpu_room);

// Checks the profiles. InvalidArgument, one line: a rank has two profiles,
// requests contradict each other, a settled profile has open choices, or an
// index is out of range.
absl::Status CheckProfiles(const std::vector<plan::RankProfile>& profiles,
                           const plan::NodeResources& resources);

}  // namespace sluice::planner
