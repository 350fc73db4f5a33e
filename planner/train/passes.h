// Counts GPU memory reads and writes of engine trainer's elementwise kernels
// (client/torch/math, client/torch/stream): norms, RoPE, activations,
// residuals, casts, sums of biases. Not counted: attention's blocks with their
// merges, matrix products, and packing for exchanges between ranks.
//
// tests/torch/memory_passes_test counts the same in a step on the fakes,
// operator by operator, and gets these numbers.
//
// Thread safety: values and pure functions.
#pragma once

#include "planner/stream/model_shape.h"
#include "planner/stream/schedule.h"

namespace sluice::planner::train {

// Number of reads and writes of bf16 tensors of all tokens, by the tensors'
// width.
struct Passes {
  double hidden = 0;
  double query = 0, key = 0;  // all heads
  double wide = 0;            // the FFN
  double head = 0;            // one head
  Passes operator+(const Passes& other) const;
  // Elements read or written per token.
  double Elements(const stream::ModelShape& model) const;
};

// Passes of a layer's forward. `stored`: the norms' outputs are kept or sent to
// the host, not dropped.
Passes ForwardPasses(const stream::ModelShape& model, bool stored);
// Passes of recomputation in backward, if all free classes are dropped.
Passes RecomputedPasses(const stream::ModelShape& model);
// Passes of backward without recomputation, in the order of blocks that moves
// the other side's sums.
Passes BackwardPasses(const stream::ModelShape& model,
                      stream::BackwardOrder order);

}  // namespace sluice::planner::train
