// Finds changes that make a run fit: one change at a time, each tried.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/search.h"

namespace sluice::planner::train {

// A change of the command after which the run fits.
struct Remedy {
  std::string flag, value;  // "--seq-len", "1728K"; "" if no flag is added
  std::vector<std::string> without;  // flags to leave out, "--tp"
  std::string Text() const;          // "--method fpdt, without --tp"
};

// Returns the nearest change of each kind, the cheapest kind first: given
// settings, sequences per step, the method, the length, more GPUs. Empty if the
// run fits or no such change helps.
absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given);

// Why `asked`, the best settings of a request, leave GPUs idle.
struct IdleGpus {
  int64_t gpus = 0;
  // True: no number of ranks that can share a sequence's attention heads, times
  // a divisor of the number of sequences, equals all GPUs. False: using all of
  // them takes longer, or does not fit either.
  bool by_heads = false;
  std::optional<int64_t> batch;  // by_heads: sequences that would use all
};
IdleGpus WhyIdle(const Request& request, const GivenSettings& given,
                 const Estimate& asked);

}  // namespace sluice::planner::train
