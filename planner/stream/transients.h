// Computes the peak of a streamed step's transient tensors: what segments
// allocate and free while they run, without rings, kept rows and states.
//
// A run plans this memory from a recording. The desk has none, and simulates
// each segment as client/torch/stream runs it, tensor by tensor. In fp32 the
// peak is the one that a run records, in bf16 0 to 15 % above
// (tests/torch/desk_against_run_test). The kernels are those of `sim`, ATen's
// on a CPU; README.md says what that means for a GPU.
#pragma once

#include "planner/stream/options.h"
#include "planner/stream/segments.h"
#include "proto/base/units.h"

namespace sluice::stream {

// The properties that determine the workspaces of the CPU's kernels.
struct Kernels {
  int threads = 1;  // each has its own workspace
  // Whether oneDNN packs a panel of the weight for bf16 matrix products, as it
  // does on a CPU with AMX.
  bool packs_bf16 = true;
};

// Return the peak of one segment over all chunks, and of all segments.
// `options` must be valid.
Bytes TransientBytes(const StreamOptions& options, Segment which,
                     const Kernels& kernels = {});
Bytes TransientBytes(const StreamOptions& options, const Kernels& kernels = {});

}  // namespace sluice::stream
