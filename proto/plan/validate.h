// The naive check that every plan passes before use. It follows the definition
// and shares no code with the solvers. It lies here and not in planner/,
// because the daemon and the client check a worker's answer and may not use the
// planner.
//
// Errors are Internal (a solver is wrong, or its answer was damaged) in one
// line: what, value, limit. Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::plan {

// Returns the part of a plan for this rank of this job, or for a profile; null
// if there is none.
const RankPlan* PartOf(const NodePlan& plan, int64_t job, Rank rank);
const RankPlan* PartOf(const NodePlan& plan, const RankProfile& profile);

// Checks that every buffer has one offset; that no buffer overlaps another that
// is alive with it, lies below 0, is unaligned, or ends above the peak; and
// that peak >= lower_bound. Compares all pairs up to 2,000 buffers, and plays
// the trace beyond that, in O(n log n).
absl::Status ValidatePlacement(const Trace& trace, const Placement& placement);

// Checks what a client needs before it adopts its rank's part: every segment
// kind of the profile is planned once, inside the transient region; every class
// is planned once, with fractions in [0, 1] that sum to 1 and equal those asked
// for; `must_swap` classes are swapped whole, and only `can_keep` classes are
// kept; alpha is their share; host_bytes covers what they need.
absl::Status ValidateRankPlan(const RankProfile& profile, const RankPlan& plan);

// Checks ValidateRankPlan for every rank, each planned once; that `shared`
// fractions are equal over a job's ranks; that host limits hold; that transient
// buffers and kept rows fit their leases; and that no link has to carry more
// than its capacity, than the unavoidable copies already take, or than the
// plan's limits say. An infeasible plan is valid, since nothing of it is used.
absl::Status ValidateNodePlan(const std::vector<RankProfile>& profiles,
                              const NodeResources& resources,
                              const NodePlan& plan);

}  // namespace sluice::plan
