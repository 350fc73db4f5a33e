// How long a streamed step takes, from what its segments took once and from
// the links' speeds: what hides behind what (FPDT section 4.2, MEMO section
// 4.1), with as many slots as the rings have.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Bytes per second of a rank; 0: no limit.
struct LinkSpeeds {
  double h2d = 0, d2h = 0;
};

// Seconds of one sequence's step. `recorded`: segments of a step that dropped
// nothing, of the same chunk size and any number of layers and chunks; what is
// dropped costs its share of the segment that makes it.
double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links);

}  // namespace sluice::stream
