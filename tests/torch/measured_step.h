// Measures the memory of one rank in a real streamed step, by the region
// allocator and the memory itself. planner/stream only gives the size of the
// host region.
#pragma once

#include <vector>

#include "planner/stream/states.h"
#include "proto/plan/profile.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Allocated memory, and what a step wrote of it, in lines of 64 bytes: the
// number of lines, and the end of the last one.
struct UsedMemory {
  Bytes size;
  Bytes written, written_end;
};

struct MeasuredStep {
  Bytes states;  // weights, gradients and optimizer, of the region
  // What the context took of the region (`kept`: rows, and whole classes), and
  // the host region. With SLUICE_POISON the former are always written.
  UsedMemory kept, rings, host;
  bool host_guard_intact = false;
  // The allocations and frees of the last step's segments.
  std::vector<plan::SegmentKind> kinds;
};

// Runs `steps` steps on all ranks of `c` and measures one of them, with its
// optimizer's states. States in host memory have the predicted size.
MeasuredStep MeasureStep(const StepCase& c, int rank, int steps,
                         stream::StatePlace states);

// Returns the most bytes that were alive at once, each block in whole lines.
Bytes PeakOf(const plan::Trace& trace);

}  // namespace sluice::runtime
