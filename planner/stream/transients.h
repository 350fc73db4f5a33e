// Computes the peak of a streamed step's transient tensors: what segments
// allocate and free while they run, without rings, kept rows and states.
//
// A run plans this memory from its recording; the desk has none and uses this.
// Each segment is simulated as client/torch/stream runs it, tensor by tensor,
// on a heap that only counts (transient_heap.h), so its peak is the one that a
// run records; tests/torch/desk_against_run_test compares the two.
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

// What the workspaces of the CPU's kernels depend on.
struct Kernels {
  int threads = 1;  // each has its own workspace
  // bf16 matrix products on a CPU with AMX: oneDNN packs a panel of the weight.
  bool packs_bf16 = true;
};

// Returns the peak of one segment over all chunks, and of all segments. Options
// must be valid (options.h).
Bytes TransientBytes(const StreamOptions& options, Segment which,
                     const Kernels& kernels = {});
Bytes TransientBytes(const StreamOptions& options, const Kernels& kernels = {});

}  // namespace sluice::stream
