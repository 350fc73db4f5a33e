// The naive check every plan passes before use. Shares no code with the
// solvers: straight from the definition. It lies here, not in
// planner/, because the daemon and the client check what a worker answered
// and may not use the planner.
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

// The part of a plan that is of this rank of this job, or that answers a
// profile; null: none.
const RankPlan* PartOf(const NodePlan& plan, int64_t job, Rank rank);
const RankPlan* PartOf(const NodePlan& plan, const RankProfile& profile);

// One offset a buffer; none overlaps another while both live, lies below 0,
// is unaligned, or ends above the peak; peak >= lower_bound. All pairs up to
// 2,000 buffers, beyond it by playing the trace, O(n log n).
absl::Status ValidatePlacement(const Trace& trace, const Placement& placement);

// Every segment kind of the profile planned once, inside the transient
// region; every class once, with fractions in [0, 1] that sum to 1, those asked
// for where some were; `must_swap` swapped whole, kept only what `can_keep`;
// alpha their share; host_bytes covers what they need. What a client checks
// before it adopts its rank's part.
absl::Status ValidateRankPlan(const RankProfile& profile, const RankPlan& plan);

// ValidateRankPlan for every rank (each planned once), `shared` fractions equal
// over a job's ranks, the host limits kept, transient buffers and kept rows
// within their leases, and no link asked for more than it has, than what must
// be copied takes already, or than the plan's limits say. An infeasible plan is
// valid: there is nothing to use.
absl::Status ValidateNodePlan(const std::vector<RankProfile>& profiles,
                              const NodeResources& resources,
                              const NodePlan& plan);

}  // namespace sluice::plan
