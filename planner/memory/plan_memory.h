// PlanMemory: where every buffer of a trace goes, with a proof (offline
// dynamic storage allocation; MEMO section 4.2). README.md has the portfolio.
//
// Thread safety: pure functions; calls may run side by side.
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

// Told before each arm and after each better plan.
struct MemoryProgress {
  std::string arm;  // "greedy", "search", "window", "cbc", …
  Bytes peak;
  Bytes lower_bound;
  double seconds = 0;
};

struct MemoryOptions {
  // Wall time, checks of the input and the plan included.
  absl::Duration time_limit = absl::Seconds(10);
  // Set from a signal or another thread: the search ends with the best plan
  // there is, as if time were up.
  const std::atomic<bool>* stop = nullptr;
  // Stops at the first plan with a peak of at most this. If no plan meets it
  // within half of the time limit, the rest is spent on the smallest peak.
  std::optional<Bytes> capacity;
  // A multiple of the usual work, at least 1, spent where the usual work ends
  // without a proof; it goes on from what `1` finds.
  int64_t effort = 1;
  // Called from the calling thread.
  std::function<void(const MemoryProgress&)> progress;
  bool use_search = true;  // canonical search: whole, windows, neighbourhoods
  bool use_cbc = true;     // the MIP for what is left
  // The program that answers `PROGRAM mip` (sluice-worker, planner/worker);
  // empty: CBC runs in this process, where its crash is ours.
  std::string mip_program;
};

// A placement (what goes over the wire and into the plan file) and what else
// there is to say about it.
struct MemoryPlan : plan::Placement {
  size_t buffers = 0;
  Bytes max_live;  // most bytes alive at once, sizes rounded up
  int levels = 1;  // 2: the best plan is that of the passes
  // "proof": the peak is the bound; "capacity": a plan fits in it;
  // "work": all arms did what they may; "time"; "stopped".
  std::string stopped_by;
  // With a capacity: whether a plan fits; nullopt: not known.
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

// Always a valid plan for a valid trace; the same one every time unless
// `stopped_by` is "time" or "stopped". InvalidArgument names the buffer that is
// nonsense.
absl::StatusOr<MemoryPlan> PlanMemory(const plan::Trace& trace,
                                      const MemoryOptions& options);

}  // namespace sluice::planner
