// PlanMemory: the solvers in turn, stopping at the first proof.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "planner/greedy.h"
#include "planner/planner.h"
#include "planner/problem.h"
#include "planner/validator.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

// What Decode checks too; a caller inside the process may not have decoded.
absl::Status CheckTrace(const plan::Trace& trace) {
  const int64_t alignment = trace.alignment.count();
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the trace's alignment {} is no power of two", alignment));
  }
  for (const plan::Buffer& b : trace.buffers) {
    if (b.lower >= b.upper) {
      return absl::InvalidArgumentError(fmt::format(
          "buffer {} lives in [{}, {}): nothing", b.id, b.lower, b.upper));
    }
    if (b.size < Bytes(0)) {
      return absl::InvalidArgumentError(
          fmt::format("buffer {} has {} bytes, below 0", b.id, b.size.count()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<plan::Placement> PlanMemory(const plan::Trace& trace,
                                           const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckTrace(trace));
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + options.time_limit;
  const Problem problem = Normalise(trace);
  GreedyResult best =
      GreedyRace(problem, [deadline] { return absl::Now() >= deadline; });
  plan::Placement placement = ToPlacement(problem, best.offsets, trace);
  placement.lower_bound = Bytes(problem.max_live * problem.unit);
  placement.proved_by = placement.optimal() ? "max_live" : "none";
  placement.method = best.method;
  placement.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  SLUICE_RETURN_IF_ERROR(ValidatePlacement(trace, placement));
  return placement;
}

}  // namespace sluice::planner
