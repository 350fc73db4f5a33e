// The planner: pure functions from traces and profiles to plans.
//
// No CUDA, gRPC, torch, threads or clocks beyond a deadline. The daemon (in a
// worker process), sluicectl and the tests call the same functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::planner {

struct MemoryOptions {
  absl::Duration time_limit = absl::Seconds(10);
  bool use_search = true;  // own canonical search
  bool use_cbc = true;     // for what is left, up to 60 buffers
};

// MEMO section 4.2, level 1: offline dynamic storage allocation of one trace.
// Greedy orders first, stopping when one meets the max-live bound; then a
// canonical search, then CBC with clique rows, until the bound is met or the
// work they may spend is spent. Always returns a valid plan for a valid
// trace; the same one every time unless the clock ended a solver.
absl::StatusOr<plan::Placement> PlanMemory(const plan::Trace& trace,
                                           const MemoryOptions& options);

// Both levels: every distinct segment kind once, then the step's sequence of
// segments as pseudo requests.
struct SegmentLayout {
  std::vector<plan::SegmentPlan> segments;
  Bytes peak;
};
absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options);

using plan::LinkCapacity;
using plan::NodeResources;

// The whole plan of a node: memory a rank, swapping for all ranks (MEMO's LP
// for alpha, with re-reads and scratch counted). An infeasible node is a plan
// whose `infeasible` says why.
absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options);

}  // namespace sluice::planner
