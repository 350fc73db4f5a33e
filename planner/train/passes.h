// How much of a GPU's memory the elementwise kernels of engine trainer read and
// write (client/torch/math, client/torch/stream): norms, RoPE, activations,
// residuals, casts, sums of biases. Not attention's blocks with their merges,
// not matrix products, and not the packing of what several ranks exchange.
//
// tests/torch/memory_passes_test counts the same, operator by operator, in a
// step on the fakes, and finds these numbers.
//
// Thread safety: values and pure functions.
#pragma once

#include "planner/stream/model_shape.h"
#include "planner/stream/schedule.h"

namespace sluice::planner::train {

// Reads and writes, in tensors of all tokens in bf16 that are so wide.
struct Passes {
  double hidden = 0;
  double query = 0, key = 0;  // all heads
  double wide = 0;            // the FFN
  double head = 0;            // one head
  Passes operator+(const Passes& other) const;
  // Elements a token.
  double Elements(const stream::ModelShape& model) const;
};

// A layer's. `stored`: what norms make is kept or sent to the host, not
// dropped.
Passes ForwardPasses(const stream::ModelShape& model, bool stored);
// What backward makes again of what is dropped: all that is free to be.
Passes RecomputedPasses(const stream::ModelShape& model);
// Without that. In the order of its blocks that moves the other side's sums.
Passes BackwardPasses(const stream::ModelShape& model,
                      stream::BackwardOrder order);

}  // namespace sluice::planner::train
