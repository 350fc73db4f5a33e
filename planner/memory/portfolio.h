// Runs the arms of PlanMemory on a normalised problem, in order, each with a
// budget in counted work (internal to the planner). README.md lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "planner/memory/plan_memory.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

// A problem's best placement so far and a lower bound.
struct Knowledge {
  Offsets offsets;
  int64_t peak = 0;
  int64_t bound = 0;
  std::string method;
  std::string proved_by = "max_live";

  bool Proved() const { return peak == bound; }
};

struct PortfolioOptions {
  const MemoryOptions& asked;
  absl::Time deadline;
  // The search ends with a plan of at most this peak. At least max_live.
  int64_t goal = 0;
  // Only a plan that meets the goal is useful, so arms try nothing else.
  bool goal_is_capacity = false;
  // Called before each arm and after each better plan.
  std::function<void(const std::string& arm, const Knowledge&)> progress;

  bool Stopped() const { return asked.stop != nullptr && asked.stop->load(); }
  bool Expired() const { return Stopped() || absl::Now() >= deadline; }
};

// Runs the greedy race on the whole problem.
Knowledge RunGreedy(const Problem& problem, const PortfolioOptions& options);

// Improves `known` by running the other arms on each piece of the problem.
void RunPieces(const Problem& problem, const PortfolioOptions& options,
               Knowledge* known);

}  // namespace sluice::planner
