// The naive check every plan passes before use. Shares no code with the
// solvers: all pairs, straight from the definition.
#pragma once

#include "absl/status/status.h"
#include "planner/planner.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// OK, or Internal naming the two buffers that overlap or the one that ends
// above the peak, lies below 0 or is not aligned.
absl::Status ValidatePlacement(const plan::Trace& trace,
                               const plan::Placement& placement);

// The above for every segment, and: fractions in [0, 1] that sum to 1, host
// budgets and link rates kept, every class planned once.
absl::Status ValidateNodePlan(const std::vector<plan::RankProfile>& profiles,
                              const NodeResources& resources,
                              const plan::NodePlan& plan);

}  // namespace sluice::planner
