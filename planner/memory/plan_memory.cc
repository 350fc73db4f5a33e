// PlanMemory: the solvers in turn, stopping at the first proof.
#include "planner/memory/plan_memory.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "planner/memory/dsa_mip.h"
#include "planner/memory/greedy.h"
#include "planner/memory/problem.h"
#include "planner/memory/restarts.h"
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

// What is known so far: the best placement, and what no placement is below.
struct State {
  Offsets offsets;
  int64_t peak = 0;
  int64_t bound = 0;
  std::string method;
  std::string proved_by = "max_live";

  bool Proved() const { return peak == bound; }
};

// The search's budget is counted in nodes (about a microsecond each), not in
// seconds, so that a plan is the same on every machine as long as the clock
// does not end it.
constexpr int64_t kSearchNodes = 4'000'000;
constexpr size_t kMaxSearchItems = 4000;

void Adopt(const Problem& problem, Offsets offsets, std::string method,
           State* state) {
  state->peak = PeakOf(problem, offsets);
  state->offsets = std::move(offsets);
  state->method = std::move(method);
}

// Asks the search for the bound itself, then for capacities halfway between
// what is proved impossible and what is found, until they meet or the budget
// ends.
void ImproveBySearch(const Problem& problem,
                     const std::function<bool()>& expired, State* state) {
  int64_t nodes = kSearchNodes;
  // The bound itself is worth most; but an open question (the bound of D and
  // J is one) must not eat it all.
  int64_t share = nodes * 3 / 8;
  int64_t target = state->bound;
  int64_t low = state->bound;
  Restarts restarts(problem);
  while (low < state->peak && nodes > 0 && !expired()) {
    const SearchResult result =
        restarts.Ask(target, std::min(nodes, share), expired);
    nodes -= result.nodes;
    share = kSearchNodes / 12;
    switch (result.verdict) {
      case Verdict::kFits:
        Adopt(problem, result.offsets, "search:" + result.order, state);
        break;
      case Verdict::kImpossible:
        low = target + 1;
        state->bound = target + 1;  // smaller capacities do not fit either
        state->proved_by = "search";
        break;
      case Verdict::kUnknown:
        low = target + 1;
        break;
    }
    target = low + (state->peak - 1 - low) / 2;
  }
}

// CBC proves 40 to 60 buffers, erratically; beyond it only takes time.
constexpr size_t kMaxCbcItems = 60;

void ImproveByCbc(const Problem& problem, absl::Duration time_limit,
                  State* state) {
  MipResult result =
      SolveDsaMip(problem, state->offsets, state->bound, time_limit);
  if (result.offsets) Adopt(problem, *std::move(result.offsets), "cbc", state);
  if (result.bound > state->bound) {
    state->bound = result.bound;
    state->proved_by = "cbc";
  }
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckTrace(trace));
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + options.time_limit;
  const auto expired = [deadline] { return absl::Now() >= deadline; };
  const Problem problem = Normalise(trace);
  GreedyResult greedy = GreedyRace(problem, problem.max_live, expired);
  State state{.offsets = std::move(greedy.offsets),
              .peak = greedy.peak,
              .bound = problem.max_live,
              .method = std::move(greedy.method)};
  const size_t n = problem.items.size();
  if (options.use_search && !state.Proved() && n <= kMaxSearchItems) {
    ImproveBySearch(problem, expired, &state);
  }
  if (options.use_cbc && !state.Proved() && n <= kMaxCbcItems && !expired()) {
    ImproveByCbc(problem, deadline - absl::Now(), &state);
  }
  MemoryPlan plan;
  static_cast<plan::Placement&>(plan) =
      ToPlacement(problem, state.offsets, trace);
  plan.lower_bound = Bytes(state.bound * problem.unit);
  plan.proved_by = state.Proved() ? state.proved_by : "none";
  plan.method = state.method;
  plan.buffers = trace.buffers.size();
  plan.max_live = Bytes(problem.max_live * problem.unit);
  plan.stopped_by = state.Proved() ? "proof" : expired() ? "time" : "work";
  if (options.capacity) {
    if (plan.peak <= *options.capacity) plan.fits = true;
    if (plan.lower_bound > *options.capacity) plan.fits = false;
  }
  SLUICE_RETURN_IF_ERROR(ValidatePlacement(trace, plan));
  plan.valid = true;
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return plan;
}

}  // namespace sluice::planner
