// The tallest heap of transient tensors of a streamed step: what a segment
// allocates and frees while it runs, beside rings, kept rows and states.
//
// A run plans this memory from what it recorded; the desk, which has nothing
// recorded, asks here. Each segment is gone through as client/torch/stream
// runs it, tensor by tensor, on a heap that only counts (transient_heap.h), so
// its peak is the one that a run records; tests/torch/desk_against_run_test
// compares the two.
//
// The kernels are those of `sim`, ATen's on a CPU; README.md says what that
// means for a GPU.
//
// Thread safety: pure functions.
#pragma once

#include "planner/stream/options.h"
#include "planner/stream/segments.h"
#include "proto/base/units.h"

namespace sluice::stream {

// What the workspaces inside the CPU's kernels depend on.
struct Kernels {
  int threads = 1;  // each has its own
  // Matrix products of bf16 by a CPU with AMX: oneDNN packs a panel of the
  // weight.
  bool packs_bf16 = true;
};

// The peak of one segment on the chunk that takes most, and of the tallest
// segment. Options are valid (options.h).
Bytes TransientBytes(const StreamOptions& options, Segment which,
                     const Kernels& kernels = {});
Bytes TransientBytes(const StreamOptions& options, const Kernels& kernels = {});

}  // namespace sluice::stream
