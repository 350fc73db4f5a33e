// Measures the memory of one rank in a real streamed step, by the region
// allocator and the memory itself. planner/stream gives only the sizes of host
// memory.
#pragma once

#include <vector>

#include "planner/stream/states.h"
#include "proto/plan/profile.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Allocated memory, and what a step wrote of it in lines of 64 bytes.
struct UsedMemory {
  Bytes size;
  Bytes written;
  Bytes written_end;  // offset of the end of the last written line
};

struct MeasuredStep {
  Bytes states;  // the region's bytes of weights, gradients and optimizer
  // `kept` (rows and whole classes) and `rings` lie in the region, and
  // SLUICE_POISON writes all of them. `host` is the host region.
  UsedMemory kept, rings, host;
  bool host_guard_intact = false;
  // The allocations and frees of the last step's segments.
  std::vector<plan::SegmentKind> kinds;
};

// Runs `steps` steps on all ranks of `c` and measures `rank`. `states` is where
// the optimizers' states are.
MeasuredStep MeasureStep(const StepCase& c, int rank, int steps,
                         stream::StatePlace states);

// Returns the most bytes that are alive at once, with each block rounded up to
// the trace's alignment.
Bytes PeakOf(const plan::Trace& trace);

}  // namespace sluice::runtime
