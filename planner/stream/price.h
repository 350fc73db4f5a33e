// What a streamed step costs in recomputation for the memory that it saves.
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/options.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// A rank's activations, and the bytes that are recomputed and not held.
struct StepPrice {
  Bytes hbm, host;
  Bytes recomputed;        // would be held in addition otherwise
  double recompute_s = 0;  // per step of one sequence
  // The factor by which the sequence can be longer for the same hbm + host,
  // since activations grow with the tokens.
  double length_gain() const {
    const int64_t held = (hbm + host).count();
    if (held == 0) return 1;
    return 1 +
           static_cast<double>(recomputed.count()) / static_cast<double>(held);
  }
};

// `options` must have the fractions that the step runs with; `profile` is the
// profile of the same step, with its segments' times.
StepPrice PriceOf(const StreamOptions& options,
                  const plan::RankProfile& profile);

}  // namespace sluice::stream
