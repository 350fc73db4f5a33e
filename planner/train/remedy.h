// Finds changes that make a run fit. Each change is tested alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/search.h"

namespace sluice::planner::train {

// A change of the command line with which the run fits.
struct Remedy {
  std::string flag, value;  // "--seq-len", "1728K"; "" if none is added
  std::vector<std::string> without;  // flags to leave out, "--tp"
  std::string Text() const;          // "--method fpdt, without --tp"
};

// Returns the nearest change of each kind that makes the run fit, the cheapest
// kind first: ZeRO 3, dropping given settings, sequences per step, the method,
// the length, more GPUs. Empty if the run fits or no such change helps.
absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given);

// Why the best settings of a request, `asked`, leave GPUs idle.
struct IdleGpus {
  int64_t gpus = 0;
  // True: no number of ranks that can share a sequence's attention heads, times
  // a divisor of the number of sequences, equals the number of GPUs. False:
  // using all of them takes longer or does not fit.
  bool by_heads = false;
  std::optional<int64_t> batch;  // sequences per step that would use all GPUs
};
IdleGpus WhyIdle(const Request& request, const GivenSettings& given,
                 const Estimate& asked);

}  // namespace sluice::planner::train
