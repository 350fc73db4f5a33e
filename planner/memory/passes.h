// Finds repeated passes in a trace that marks no layers, and plans the trace in
// the two levels of MEMO section 4.2 (internal to the planner).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// A span of the trace's time with the same requests as another span, such as a
// layer or a micro batch.
struct Pass {
  int64_t lower = 0;
  int64_t upper = 0;
};

// Returns disjoint, ascending spans of the trace that make the same requests:
// the same sizes in the same order, and the same lifetimes of buffers freed
// inside. Prefers the longest runs that repeat with a period, and cuts a run
// into passes where the least short-lived memory is alive. Returns nothing if
// `stopped` returned true. Visits each request a few hundred times.
std::vector<Pass> DetectPasses(
    const plan::Trace& trace,
    const std::function<bool()>& stopped = [] { return false; });

// Returns how many buffers live and die inside one of the passes.
size_t InPasses(const plan::Trace& trace, const std::vector<Pass>& passes);

using FlatPlanner =
    std::function<absl::StatusOr<plan::Placement>(const plan::Trace&)>;

// Plans a trace in two levels. Level 1 plans each distinct pass once, with the
// buffers that live and die inside it. Level 2 replaces each pass by one pseudo
// request with the peak of its plan, and places these together with the other
// buffers. Returns nullopt if no pass contains two buffers, because then two
// levels gain nothing. The placement's lower_bound is 0, because a proof for
// level 2 proves nothing about the flat trace.
absl::StatusOr<std::optional<plan::Placement>> PlanByPasses(
    const plan::Trace& trace, const std::vector<Pass>& passes,
    const FlatPlanner& flat);

}  // namespace sluice::planner
