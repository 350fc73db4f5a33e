// What would make a run fit that does not: one change at a time, each tried.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/search.h"

namespace sluice::planner::train {

// One change of the command after which it fits.
struct Remedy {
  std::string flag, value;           // "--seq-len", "1728K"; "" for none
  std::vector<std::string> without;  // flags to leave out, "--tp"
  std::string Text() const;          // "--method fpdt, without --tp"
};

// The nearest of each kind, the cheapest kind first: settings that were given,
// sequences per step, the method, the length, more GPUs, fewer GPUs. Empty
// where it fits or nothing of that helps.
absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given);

// All GPUs that are given must be used, so more of them may be slower.
struct FasterNumber {
  int64_t gpus = 0;
  double step_s = 0;
};
// The fewer GPUs whose step is the shortest, if it is shorter than `asked`,
// which is the best of all of them.
std::optional<FasterNumber> FewerButFaster(const Request& request,
                                           const GivenSettings& given,
                                           const Estimate& asked);

}  // namespace sluice::planner::train
