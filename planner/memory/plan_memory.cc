#include "planner/memory/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "planner/memory/passes.h"
#include "planner/memory/portfolio.h"
#include "planner/memory/problem.h"
#include "proto/base/status.h"
#include "proto/plan/validate.h"

namespace sluice::planner {
namespace {

// A limit that keeps sums of sizes in 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 61;

// Checks the trace as Decode does, which a caller in this process may not have
// used.
absl::Status CheckTrace(const plan::Trace& trace) {
  const int64_t alignment = trace.alignment.count();
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("the trace's alignment {} is no power of two", alignment));
  }
  int64_t left = kMostBytes;
  for (const plan::Buffer& b : trace.buffers) {
    if (b.lower >= b.upper) {
      return absl::InvalidArgumentError(fmt::format(
          "buffer {} lives in [{}, {}): nothing", b.id, b.lower, b.upper));
    }
    if (b.size < Bytes(0)) {
      return absl::InvalidArgumentError(
          fmt::format("buffer {} has {} bytes, below 0", b.id, b.size.count()));
    }
    if (b.size.count() > left - alignment) {
      return absl::InvalidArgumentError(
          fmt::format("the buffers up to {} have more than {} bytes together",
                      b.id, kMostBytes));
    }
    left -= RoundUp(b.size, trace.alignment).count();
  }
  return absl::OkStatus();
}

constexpr size_t kMinLeveledItems = 1000;

PortfolioOptions PortfolioOptionsOf(const MemoryOptions& options,
                                    const Problem& problem, absl::Time start) {
  PortfolioOptions inner{.asked = options,
                         .deadline = start + options.time_limit,
                         .goal = problem.max_live,
                         .progress = {}};
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

// Plans two levels, each by greedy orders alone. Replaces `known` by the plan
// if it is better, and returns whether it is.
bool RunLevels(const plan::Trace& trace, const Problem& problem,
               const std::vector<Pass>& passes, const PortfolioOptions& inner,
               Knowledge* known) {
  const absl::Duration share = (inner.deadline - absl::Now()) / 8;
  const auto flat =
      [&](const plan::Trace& level) -> absl::StatusOr<plan::Placement> {
    const Problem part = Normalise(level);
    const MemoryOptions own{.time_limit = share, .stop = inner.asked.stop};
    return PlanOf(level, part,
                  RunGreedy(part, PortfolioOptionsOf(own, part, absl::Now())));
  };
  const auto leveled = PlanByPasses(trace, passes, flat);
  if (!leveled.ok() || !leveled->has_value()) return false;
  const plan::Placement& found = **leveled;
  if (found.peak.count() / problem.unit >= known->peak ||
      !plan::ValidatePlacement(trace, found).ok()) {
    return false;
  }
  known->peak = found.peak.count() / problem.unit;
  known->offsets.resize(problem.source.size());
  for (size_t k = 0; k < problem.source.size(); ++k) {
    known->offsets[k] = found.offsets[problem.source[k]].count() / problem.unit;
  }
  known->method = "levels:" + found.method;
  return true;
}

// Plans two levels if at least half of a long trace is repetition, which takes
// less time than a race over the flat trace.
bool RunLevelsFirst(const plan::Trace& trace, const Problem& problem,
                    const MemoryOptions& options, const PortfolioOptions& inner,
                    Knowledge* known) {
  if (!options.use_search || problem.items.size() < kMinLeveledItems) {
    return false;
  }
  const std::vector<Pass> passes =
      DetectPasses(trace, [&inner] { return inner.Stopped(); });
  return 2 * InPasses(trace, passes) >= trace.buffers.size() &&
         RunLevels(trace, problem, passes, inner, known);
}

// The result of one run through the arms.
struct Found {
  Knowledge known;
  bool leveled = false;
  bool expired = false;
};

Found SolveOnce(const plan::Trace& trace, const Problem& problem,
                const MemoryOptions& options, absl::Time start) {
  const PortfolioOptions inner = PortfolioOptionsOf(options, problem, start);
  Found found{.known = {.peak = INT64_MAX, .bound = problem.max_live}};
  Knowledge& known = found.known;
  found.leveled = RunLevelsFirst(trace, problem, options, inner, &known);
  if (known.peak > inner.goal) {
    Knowledge greedy = RunGreedy(problem, inner);
    if (greedy.peak <= known.peak) {
      known = std::move(greedy);
      found.leveled = false;
    }
  }
  if (known.peak > inner.goal && !inner.Expired()) {
    const int64_t before = known.peak;
    RunPieces(problem, inner, &known);
    found.leveled = found.leveled && known.peak == before;
  }
  found.expired = inner.Expired();
  return found;
}

// Combines the better plan and the better bound of two runs.
Found CombineFound(Found first, Found second) {
  const Knowledge& bound =
      first.known.bound > second.known.bound ? first.known : second.known;
  const int64_t most = bound.bound;
  const std::string proved_by = bound.proved_by;
  Found& best = first.known.peak < second.known.peak ? first : second;
  best.expired = second.expired;
  best.known.bound = most;
  best.known.proved_by = proved_by;
  return std::move(best);
}

// With a capacity, first searches only for a plan that fits it. If none is
// found, searches for the smallest peak.
Found Solve(const plan::Trace& trace, const Problem& problem,
            const MemoryOptions& options, absl::Time start) {
  if (!options.capacity) return SolveOnce(trace, problem, options, start);
  const int64_t units = options.capacity->count() / problem.unit;
  MemoryOptions free = options;
  free.capacity.reset();
  // No plan fits, because max_live is a lower bound.
  if (units < problem.max_live) return SolveOnce(trace, problem, free, start);
  MemoryOptions asked = options;
  asked.time_limit = options.time_limit / 2;
  Found found = SolveOnce(trace, problem, asked, start);
  if (found.known.peak <= units) return found;
  return CombineFound(std::move(found), SolveOnce(trace, problem, free, start));
}

const char* StoppedBy(const MemoryPlan& plan, const MemoryOptions& options,
                      bool expired) {
  if (plan.optimal()) return "proof";
  if (options.capacity && plan.fits == true) return "capacity";
  if (options.stop != nullptr && options.stop->load()) return "stopped";
  return expired ? "time" : "work";
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckTrace(trace));
  const absl::Time start = absl::Now();
  const Problem problem = Normalise(trace);
  const Found found = Solve(trace, problem, options, start);
  MemoryPlan plan = PlanOf(trace, problem, found.known);
  plan.levels = found.leveled ? 2 : 1;
  if (options.capacity) {
    if (plan.peak <= *options.capacity) plan.fits = true;
    if (plan.lower_bound > *options.capacity) plan.fits = false;
  }
  plan.stopped_by = StoppedBy(plan, options, found.expired);
  SLUICE_RETURN_IF_ERROR(plan::ValidatePlacement(trace, plan));
  plan.valid = true;
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return plan;
}

}  // namespace sluice::planner
