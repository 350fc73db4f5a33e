// PlanMemory: places every buffer of a trace, with a proved lower bound
// (offline dynamic storage allocation; MEMO section 4.2). README.md describes
// the portfolio.
//
// Thread safety: pure functions; concurrent calls are allowed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// Reported before each arm and after each better plan.
struct MemoryProgress {
  std::string arm;  // "greedy", "search", "window", "cbc", …
  Bytes peak;
  Bytes lower_bound;
  double seconds = 0;
};

struct MemoryOptions {
  // Wall time, including the checks of the input and the plan.
  absl::Duration time_limit = absl::Seconds(10);
  // Set from a signal handler or another thread: the search ends with the best
  // plan so far, as if the time were over.
  const std::atomic<bool>* stop = nullptr;
  // Stops at the first plan with a peak of at most this. If no plan meets it
  // within half of the time limit, the rest is spent on the smallest peak.
  std::optional<Bytes> capacity;
  // A multiple of the usual work, at least 1. The additional work is spent if
  // the usual work ends without a proof, and continues from its result.
  int64_t effort = 1;
  // Runs in the calling thread.
  std::function<void(const MemoryProgress&)> progress;
  bool use_search = true;  // canonical search: whole, windows, neighbourhoods
  bool use_cbc = true;     // the MIP, for pieces that are still open
  // The program that answers `PROGRAM mip` (sluice-worker, planner/worker).
  // Empty: CBC runs in this process, and a crash of CBC ends it.
  std::string mip_program;
};

// A placement (the part that is sent and written to the plan file) and facts
// about how it was found.
struct MemoryPlan : plan::Placement {
  size_t buffers = 0;
  Bytes max_live;  // most bytes alive at once, with sizes rounded up
  int levels = 1;  // 2: the best plan was made from passes
  // "proof": the peak equals the bound; "capacity": the plan fits in it;
  // "work": all arms used their budgets; "time"; "stopped".
  std::string stopped_by;
  // With a capacity: whether a plan fits, nullopt if not known.
  std::optional<bool> fits;
  bool valid = false;  // passed ValidatePlacement

  // (peak - lower_bound) / lower_bound; 0 for an empty trace.
  double gap() const {
    return lower_bound > Bytes(0)
               ? static_cast<double>((peak - lower_bound).count()) /
                     static_cast<double>(lower_bound.count())
               : 0;
  }
};

// Plans the trace. For a valid trace the plan is always valid, and the same
// every time unless `stopped_by` is "time" or "stopped". InvalidArgument: a
// buffer is invalid; the message names it.
absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options);

}  // namespace sluice::planner
