// By when the copies of a streamed step are needed.
//
// Rings decide that (client/torch/stream/chunk_io.h): a copy may start when the
// slot before it is free, and compute comes to it when it is through with what
// the other slots hold. So each kind of copy has a slack: the compute of all
// slots but one. If copies of a kind differ, it is the shortest.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct CopyDue {
  const char* label;  // the copies' own
  double slack_seconds = 0;
};

// Each label of a step's copies, once. `recorded`: segments of the plan, with
// what each takes; one that was not recorded takes no time.
std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
