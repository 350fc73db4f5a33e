// The naive check that every plan passes before use. It shares no code with the
// solvers, and is not in planner/, because the daemon and the client check a
// worker's answer and may not depend on the planner.
//
// Errors are Internal (a solver is wrong, or its answer was damaged) in one
// line: what, value, limit.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::plan {

// Returns the part of a plan for a rank of a job; null if there is none.
const RankPlan* PartOf(const NodePlan& plan, int64_t job, Rank rank);
const RankPlan* PartOf(const NodePlan& plan, const RankProfile& profile);

// Checks that buffers alive at the same time do not overlap, that offsets are
// aligned and not negative, that no buffer ends above the peak, and that peak
// >= lower_bound. Compares all pairs of up to 2,000 buffers; with more, replays
// the trace in time order, in O(n log n).
absl::Status ValidatePlacement(const Trace& trace, const Placement& placement);

// Checks a rank's part of a plan, for the client that adopts it: every segment
// kind is planned once, inside the transient region; every class is planned
// once, with fractions in [0, 1] that sum to 1 and equal the requested ones;
// `must_swap` classes are swapped whole, and only `can_keep` classes are kept;
// alpha is the swapped share; host_bytes covers swapped classes and host_fixed.
absl::Status ValidateRankPlan(const RankProfile& profile, const RankPlan& plan);

// Checks every rank (ValidateRankPlan); that `shared` fractions are equal over
// a job's ranks; that host limits hold; that transient buffers and kept rows
// fit their leases. Also checks that the copies over a link do not exceed its
// capacity, unless no plan can avoid them or the plan's limits state a higher
// rate. An infeasible plan is valid, since nothing of it is used.
absl::Status ValidateNodePlan(const std::vector<RankProfile>& profiles,
                              const NodeResources& resources,
                              const NodePlan& plan);

}  // namespace sluice::plan
