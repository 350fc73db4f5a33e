// What a run derives from its recorded segments: the planner's profile of a
// streamed step, the slack of its copies, and the price of its recomputation.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/base/units.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Returns the planner's profile of a streamed step: skeletal classes (bytes and
// recompute times), fixed traffic, host bytes and windows. `recorded` has the
// segment kinds of a calibration run with the same chunk size and ranks; their
// executions are set for `options.layout`. The caller sets job, rank, gpu,
// numa, transient_capacity and what the user requests.
plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded);

// The slack of a kind of copies through a ring
// (client/torch/stream/chunk_io.h): the compute time from a copy's earliest
// start until compute needs its data or its slot. Meanwhile the other slots are
// used. If copies of a kind differ, the slack is the shortest.
struct CopyDue {
  const char* label;  // the label of the copies
  double slack_seconds = 0;
};

// Returns the slack of every kind of copies. `recorded` has the plan's segments
// with their times; a segment that is not in it takes no time.
std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded);

// The bytes of a rank's activations: kept, swapped or recomputed.
struct StepPrice {
  Bytes hbm, host;
  Bytes recomputed;        // bytes not stored because of recomputation
  double recompute_s = 0;  // per step of one sequence
  // Returns the factor by which the sequence can be longer with the same hbm +
  // host, because activations grow in proportion to the tokens.
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
