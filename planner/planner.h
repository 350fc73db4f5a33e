// The planner's interface: functions from traces and profiles to plans.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/memory/plan_memory.h"
#include "planner/unit_book.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

// The placement of each segment kind, with its base in the transient region,
// and the peak over all kinds.
struct SegmentLayout {
  std::vector<plan::SegmentPlan> segments;
  Bytes peak;
};
// Plans each distinct segment kind once, then the segments' sequence. `book`
// (may be null) has units planned earlier; newly solved units are added to it.
absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options, UnitBook* book = nullptr);

using plan::LinkCapacity;
using plan::NodeResources;

// Plans a whole node: the memory of each rank, then what all ranks swap. If no
// plan fits, the result has `infeasible` set to the reason.
absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book = nullptr);

}  // namespace sluice::planner
