// The planner: pure functions from traces and profiles to plans.
//
// No CUDA, gRPC, torch, or clocks beyond a deadline. The daemon (in a
// worker process), sluicectl and the tests call the same functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/memory/plan_memory.h"
#include "planner/unit_book.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// Both levels: every distinct segment kind once, then the step's sequence of
// segments as pseudo requests.
struct SegmentLayout {
  std::vector<plan::SegmentPlan> segments;
  Bytes peak;
};
// `book` (may be null): units planned before, to which those solved are added.
absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options, UnitBook* book = nullptr);

using plan::LinkCapacity;
using plan::NodeResources;

// The whole plan of a node: memory a rank, swapping for all ranks (MEMO's LP
// for alpha, with re-reads and scratch counted). If no plan fits, the result
// has `infeasible` with the reason.
absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book = nullptr);

}  // namespace sluice::planner
