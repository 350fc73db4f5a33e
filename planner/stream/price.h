// What a streamed step gives for the memory that it does without.
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/options.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// A rank's activations, and what is computed again in place of holding it.
struct StepPrice {
  Bytes hbm, host;
  Bytes recomputed;        // that would be held beside them
  double recompute_s = 0;  // in the step of one sequence
  // How many times the tokens fit into hbm + host, as activations grow with
  // the tokens.
  double length_gain() const {
    const int64_t held = (hbm + host).count();
    if (held == 0) return 1;
    return 1 +
           static_cast<double>(recomputed.count()) / static_cast<double>(held);
  }
};

// `options` with the fractions that the step runs with; `profile` is that of
// the same step, with what its segments took.
StepPrice PriceOf(const StreamOptions& options,
                  const plan::RankProfile& profile);

}  // namespace sluice::stream
