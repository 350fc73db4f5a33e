// PlanMemory: places every buffer of a trace, with a proved lower bound
// (offline dynamic storage allocation; MEMO section 4.2). README.md describes
// the portfolio. Concurrent calls are allowed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// The state of a run, reported before each arm from the sweep on.
struct MemoryProgress {
  // "sweep", "greedy race", "search", "window", "ejection" or "cbc".
  std::string arm;
  Bytes peak;
  Bytes lower_bound;
  double seconds = 0;
};

struct MemoryOptions {
  // Wall time of all arms; the checks of the input and the plan come on top.
  absl::Duration time_limit = absl::Seconds(10);
  // Set by a signal handler or another thread. Ends the run like a timeout.
  const std::atomic<bool>* stop = nullptr;
  // Stops at the first plan with a peak of at most `capacity`. If none is found
  // in half of the time limit, the rest of it is spent on the smallest peak.
  std::optional<Bytes> capacity;
  // A multiple of the usual work, at least 1. The additional work continues
  // from the usual result if that has no proof.
  int64_t effort = 1;
  // Called in the thread that called PlanMemory.
  std::function<void(const MemoryProgress&)> progress;
  // Enables levels, search, windows and ejection. Otherwise only replay, sweep,
  // the greedy race and CBC run.
  bool use_search = true;
  bool use_cbc = true;  // the MIP, for pieces without a proof
  // The program that is run as `PROGRAM mip` to solve the MIP (sluice-worker).
  // If empty, CBC runs in this process, and a crash of CBC ends the process.
  std::string mip_program;
};

struct MemoryPlan : plan::Placement {
  size_t buffers = 0;
  Bytes max_live;  // most bytes alive at once, with sizes rounded up
  int levels = 1;  // 2 if the best plan was made from passes
  // "proof": the peak equals the bound; "capacity": the plan fits the capacity;
  // "work": all arms used their budgets; "time"; "stopped".
  std::string stopped_by;
  // Whether a plan can fit the capacity. Not set without a capacity, or if the
  // answer is unknown.
  std::optional<bool> fits;
  bool valid = false;  // passed ValidatePlacement

  // Returns (peak - lower_bound) / lower_bound, or 0 for an empty trace.
  double gap() const {
    return lower_bound > Bytes(0)
               ? static_cast<double>((peak - lower_bound).count()) /
                     static_cast<double>(lower_bound.count())
               : 0;
  }
};

// Plans the trace. For a valid trace the plan is always valid. It is the same
// in every run unless `stop` or a time limit cuts work short: the whole limit,
// the half of it for a capacity, the eighth for a plan of two levels, or the
// limit of CBC. `stopped_by` reports only `stop` and the whole limit.
// InvalidArgument: the alignment or a buffer is invalid; the message names it.
absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options);

}  // namespace sluice::planner
