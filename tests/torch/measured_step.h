// Measures the memory of one rank in a real streamed step, by the region
// allocator and the memory itself. planner/stream only gives the size of the
// host region.
#pragma once

#include <vector>

#include "planner/stream/states.h"
#include "proto/plan/profile.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Allocated memory. `written`: bytes of it that a step wrote, in lines of 64
// bytes. `written_end`: the end of the last written line.
struct UsedMemory {
  Bytes size;
  Bytes written, written_end;
};

struct MeasuredStep {
  Bytes states;  // weights, gradients and optimizer, of the region
  // `kept` (rows and whole classes) and `rings` lie in the region, and
  // SLUICE_POISON writes all of them. `host` is the host region.
  UsedMemory kept, rings, host;
  bool host_guard_intact = false;
  // The allocations and frees of the last step's segments.
  std::vector<plan::SegmentKind> kinds;
};

// Runs `steps` steps on all ranks of `c` and measures `rank`, with its
// optimizer's states. States in host memory have the predicted size.
MeasuredStep MeasureStep(const StepCase& c, int rank, int steps,
                         stream::StatePlace states);

// Returns the most bytes that are alive at once, with each block rounded up to
// the trace's alignment.
Bytes PeakOf(const plan::Trace& trace);

}  // namespace sluice::runtime
