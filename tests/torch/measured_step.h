// What one rank of a real streamed step takes, as the region allocator and the
// memory itself say: nothing here is asked of planner/stream but how large to
// make the host region.
#pragma once

#include <vector>

#include "planner/stream/states.h"
#include "proto/plan/profile.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {

// Memory that was handed out, and what a step wrote of it, in lines of 64
// bytes: how many lines, and the end of the last one.
struct UsedMemory {
  Bytes size;
  Bytes written, written_end;
};

struct MeasuredStep {
  Bytes states;  // weights, gradients and optimizer, of the region
  // What the context took of the region (`kept`: rows, and whole classes), and
  // the host region. With SLUICE_POISON the former are written in any case.
  UsedMemory kept, rings, host;
  bool host_guard_intact = false;
  // What the segments of the last step asked for and gave back.
  std::vector<plan::SegmentKind> kinds;
};

// Runs `steps` steps on all ranks of `c` and measures one of them, with the
// optimizer's states there. Those in host memory have what is counted.
MeasuredStep MeasureStep(const StepCase& c, int rank, int steps,
                         stream::StatePlace states);

// The most that was alive at once in a segment, each block in whole lines.
Bytes PeakOf(const plan::Trace& trace);

}  // namespace sluice::runtime
