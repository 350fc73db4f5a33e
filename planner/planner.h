// The planner: pure functions from traces and profiles to plans.
//
// It uses no CUDA, gRPC or torch, and no clock except for deadlines. The daemon
// (in a worker process), sluicectl and the tests call the same functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/memory/plan_memory.h"
#include "planner/unit_book.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// The result of planning both levels: the placement of each segment kind, with
// its base in the transient region, and the peak over all kinds.
struct SegmentLayout {
  std::vector<plan::SegmentPlan> segments;
  Bytes peak;
};
// Plans both levels: each distinct segment kind once, then the segments'
// sequence. `book` (may be null) has units planned earlier; newly solved units
// are added to it.
absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options, UnitBook* book = nullptr);

using plan::LinkCapacity;
using plan::NodeResources;

// Plans a whole node: the memory of each rank, then what all ranks swap (MEMO's
// LP for alpha, which here also counts re-reads and scratch). If no plan fits,
// the result has `infeasible` set to the reason.
absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book = nullptr);

}  // namespace sluice::planner
