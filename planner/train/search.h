// Searches the best settings of a request, the longest sequence, and changes
// that make a run fit.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/estimate.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// Returns the estimate of the fastest settings that fit, among all that `given`
// allows, on all or some of the GPUs (settings.gpus()). If no settings fit,
// returns the estimate of those that exceed memory by the least. `reason` is
// kHeads if no settings divide the heads. MFU and tokens per GPU count idle
// GPUs of the request too.
absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given);

struct LongestSequence {
  int64_t tokens = 0;  // a multiple of kLengthStep, or 0 if none fits
  Reason stopped_by = Reason::kOk;  // kOk if kLongest fits
  Estimate at;  // at `tokens`, or at kLengthStep if `tokens` is 0
};
inline constexpr int64_t kLengthStep = 64 << 10;
inline constexpr int64_t kLongest = int64_t{256} << 20;

// Returns the longest sequence that fits with any settings that `given` allows
// and has a step of at most `max_step_s`. `stopped_by` is kStep if the next
// length's step takes longer.
absl::StatusOr<LongestSequence> FindLongest(
    Request request, const GivenSettings& given,
    double max_step_s = std::numeric_limits<double>::infinity());

// A change of the command line with which the run fits.
struct Remedy {
  std::string flag, value;  // "--seq-len", "1728K"; "" if none is added
  std::vector<std::string> without;  // flags to leave out, "--tp"
  std::string Text() const;          // "--method fpdt, without --tp"
};

// Returns the nearest change of each kind that makes the run fit, each tested
// alone, the cheapest kind first: ZeRO 3, dropping given settings, sequences
// per step, the method, the length, more GPUs. Empty if the run fits or no such
// change helps.
absl::StatusOr<std::vector<Remedy>> FindRemedies(const Request& request,
                                                 const GivenSettings& given);

// Why the best settings of a request leave GPUs idle.
struct IdleGpus {
  int64_t gpus = 0;
  // True if no number of ranks that can share a sequence's attention heads,
  // times a divisor of the number of sequences, equals the number of GPUs.
  // False if using all GPUs takes longer or does not fit.
  bool by_heads = false;
  std::optional<int64_t> batch;  // the least sequences with which none is idle
};
// `asked` is the estimate of BestEstimate.
IdleGpus WhyIdle(const Request& request, const GivenSettings& given,
                 const Estimate& asked);

}  // namespace sluice::planner::train
