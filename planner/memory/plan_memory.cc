// PlanMemory: the solvers in turn, stopping at the first proof.
#include "planner/memory/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "planner/memory/passes.h"
#include "planner/memory/portfolio.h"
#include "planner/memory/problem.h"
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

// Where the two levels begin to pay.
constexpr size_t kMinLeveledItems = 200;

PortfolioOptions OptionsOf(const MemoryOptions& options, const Problem& problem,
                           absl::Time start) {
  PortfolioOptions inner{.use_search = options.use_search,
                         .use_cbc = options.use_cbc,
                         .mip_program = options.mip_program,
                         .deadline = start + options.time_limit,
                         .goal = problem.max_live};
  if (options.capacity) {
    const int64_t units = options.capacity->count() / problem.unit;
    inner.goal_is_capacity = units >= problem.max_live;
    inner.goal = std::max(inner.goal, units);
  }
  inner.progress = [&options, unit = problem.unit, start](
                       const std::string& arm, const Knowledge& known) {
    if (!options.progress) return;
    options.progress({.arm = arm,
                      .peak = Bytes(known.peak * unit),
                      .lower_bound = Bytes(known.bound * unit),
                      .seconds = absl::ToDoubleSeconds(absl::Now() - start)});
  };
  return inner;
}

MemoryPlan PlanOf(const plan::Trace& trace, const Problem& problem,
                  const Knowledge& known) {
  MemoryPlan plan;
  static_cast<plan::Placement&>(plan) =
      ToPlacement(problem, known.offsets, trace);
  plan.lower_bound = Bytes(known.bound * problem.unit);
  plan.proved_by = known.Proved() ? known.proved_by : "none";
  plan.method = known.method;
  plan.buffers = trace.buffers.size();
  plan.max_live = Bytes(problem.max_live * problem.unit);
  return plan;
}

// The two levels, each planned as a flat trace; kept where they are better.
// Their proof is not the flat trace's.
bool RunLevels(const plan::Trace& trace, const Problem& problem,
               const MemoryOptions& options, const PortfolioOptions& inner,
               Knowledge* known) {
  inner.progress("levels", *known);
  const std::vector<Pass> passes =
      options.passes.empty() ? DetectPasses(trace) : options.passes;
  if (passes.empty()) return false;
  const absl::Duration share = (inner.deadline - absl::Now()) / 8;
  const auto flat =
      [&](const plan::Trace& level) -> absl::StatusOr<plan::Placement> {
    const Problem part = Normalise(level);
    const MemoryOptions own{.time_limit = share, .use_cbc = false};
    const PortfolioOptions arms = OptionsOf(own, part, absl::Now());
    Knowledge best = RunGreedy(part, arms);
    if (!best.Proved()) RunPieces(part, arms, &best);
    return PlanOf(level, part, best);
  };
  const auto leveled = PlanByPasses(trace, passes, flat);
  if (!leveled.ok() || !leveled->has_value()) return false;
  const plan::Placement& found = **leveled;
  if (found.peak >= Bytes(known->peak * problem.unit) ||
      !ValidatePlacement(trace, found).ok()) {
    return false;
  }
  known->peak = found.peak.count() / problem.unit;
  for (size_t k = 0; k < problem.source.size(); ++k) {
    known->offsets[k] = found.offsets[problem.source[k]].count() / problem.unit;
  }
  known->method = "levels:" + found.method;
  return true;
}

const char* StoppedBy(const MemoryPlan& plan, const MemoryOptions& options,
                      bool expired) {
  if (plan.optimal()) return "proof";
  if (plan.fits.has_value() && options.capacity) return "capacity";
  return expired ? "time" : "work";
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckTrace(trace));
  const absl::Time start = absl::Now();
  const Problem problem = Normalise(trace);
  const PortfolioOptions inner = OptionsOf(options, problem, start);
  // Nothing can fit: any plan will do.
  const bool hopeless =
      options.capacity &&
      *options.capacity < Bytes(problem.max_live * problem.unit);
  Knowledge known = RunGreedy(problem, inner);
  const auto open = [&] {
    return !hopeless && known.peak > inner.goal && !inner.Expired();
  };
  bool leveled = false;
  if (open() && options.use_search &&
      (problem.items.size() >= kMinLeveledItems || !options.passes.empty())) {
    leveled = RunLevels(trace, problem, options, inner, &known);
  }
  if (open()) {
    const int64_t before = known.peak;
    RunPieces(problem, inner, &known);
    leveled = leveled && known.peak == before;
  }
  MemoryPlan plan = PlanOf(trace, problem, known);
  plan.levels = leveled ? 2 : 1;
  if (options.capacity) {
    if (plan.peak <= *options.capacity) plan.fits = true;
    if (plan.lower_bound > *options.capacity) plan.fits = false;
  }
  plan.stopped_by = StoppedBy(plan, options, inner.Expired());
  SLUICE_RETURN_IF_ERROR(ValidatePlacement(trace, plan));
  plan.valid = true;
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return plan;
}

}  // namespace sluice::planner
