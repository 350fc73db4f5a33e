// Computes how much recomputation a streamed step needs for the memory that it
// saves.
#pragma once

#include "planner/stream/options.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// The bytes of a rank's activations, by where they are kept or whether they are
// recomputed.
struct StepPrice {
  Bytes hbm, host;
  Bytes recomputed;        // bytes not stored because of recomputation
  double recompute_s = 0;  // per step of one sequence
  // The factor by which the sequence can be longer with the same hbm + host,
  // because activations grow in proportion to the tokens.
  double length_gain() const {
    const int64_t held = (hbm + host).count();
    if (held == 0) return 1;
    return 1 +
           static_cast<double>(recomputed.count()) / static_cast<double>(held);
  }
};

// `options` must have the fractions that the step runs with; `profile` must be
// of the same step, with its segments' times.
StepPrice PriceOf(const StreamOptions& options,
                  const plan::RankProfile& profile);

}  // namespace sluice::stream
