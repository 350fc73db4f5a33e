// Repetition in a trace, and plans that use it: MEMO section 4.2's two levels
// without anyone marking the layers (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// A span of the trace's time that does the same as another, a layer or a
// micro batch: the repeated unit of the two-level plan.
struct Pass {
  int64_t lower = 0;
  int64_t upper = 0;
};

// Spans of the trace, disjoint and ascending, that make the same requests:
// same sizes in the same order, same lifetimes of what is freed inside. Found
// as runs of a period in the sequence of requests, the longest runs first;
// a run's phase is the one across which least short-lived memory is alive.
// Empty where nothing repeats, and once `stopped`. Time: a few hundred looks at
// a request.
std::vector<Pass> DetectPasses(
    const plan::Trace& trace,
    const std::function<bool()>& stopped = [] { return false; });

// How many buffers live and die inside one of the passes.
size_t InPasses(const plan::Trace& trace, const std::vector<Pass>& passes);

// A plan of one trace; what PlanMemory's flat arms are to the two levels.
using FlatPlanner =
    std::function<absl::StatusOr<plan::Placement>(const plan::Trace&)>;

// Level 1: each distinct pass once, with the buffers that live and die inside
// it. Level 2: each pass is one pseudo request of its plan's peak, beside the
// buffers that cross its ends. nullopt: no pass holds two buffers, so there
// is nothing to gain. The placement is of the whole trace and valid; its
// lower_bound is 0 and proved_by "none": a proof of level 2 proves nothing
// about the flat trace.
absl::StatusOr<std::optional<plan::Placement>> PlanByPasses(
    const plan::Trace& trace, const std::vector<Pass>& passes,
    const FlatPlanner& flat);

}  // namespace sluice::planner
