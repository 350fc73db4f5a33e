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

// The result of both levels: each distinct segment kind planned once, and the
// step's sequence of segments as pseudo requests.
struct SegmentLayout {
  std::vector<plan::SegmentPlan> segments;
  Bytes peak;
};
// Plans both levels. `book` (may be null) holds units planned before; newly
// solved units are added to it.
absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options, UnitBook* book = nullptr);

using plan::LinkCapacity;
using plan::NodeResources;

// Plans a whole node: memory of each rank, and swapping of all ranks (MEMO's LP
// for alpha, with re-reads and scratch counted). If no plan fits, the result
// has `infeasible` set to the reason.
absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book = nullptr);

}  // namespace sluice::planner
