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
// sequences per step, the method, the length, more GPUs. Empty where it fits or
// nothing of that helps.
absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given);

// Why `asked`, the best of a request, leaves GPUs idle.
struct IdleGpus {
  int64_t gpus = 0;
  // No number of ranks that can share the attention heads of a sequence, times
  // one that divides the sequences, is all GPUs. Else all of them would take
  // longer, or do not fit either.
  bool by_heads = false;
  std::optional<int64_t> batch;  // by_heads: sequences that would use all
};
IdleGpus WhyIdle(const Request& request, const GivenSettings& given,
                 const Estimate& asked);

}  // namespace sluice::planner::train
