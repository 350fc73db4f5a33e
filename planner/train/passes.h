// Counts the GPU memory reads and writes of engine trainer's elementwise
// kernels (client/torch/math, client/torch/stream): norms, RoPE, activations,
// residuals, casts, sums of biases. Attention's blocks with their merges,
// matrix products, and packing for exchanges between ranks are not counted.
// tests/torch/memory_passes_test compares the numbers with a step's.
#pragma once

#include "planner/stream/model_shape.h"
#include "planner/stream/schedule.h"

namespace sluice::planner::train {

// Reads and writes of bf16 tensors of all tokens, by the tensors' width.
struct Passes {
  double hidden = 0;
  double query = 0, key = 0;  // of all q heads and of all k heads
  double wide = 0;            // the FFN's
  double head = 0;            // of one head
  Passes operator+(const Passes& other) const;
  // Returns the elements that are read or written per token.
  double Elements(const stream::ModelShape& model) const;
};

// Counts a layer's forward. With `stored` the norms' outputs are kept or sent
// to the host, else they are dropped.
Passes ForwardPasses(const stream::ModelShape& model, bool stored);
// Counts recomputation in backward if all free classes were dropped.
Passes RecomputedPasses(const stream::ModelShape& model);
// Counts backward without recomputation. `order` says which sums are moved.
Passes BackwardPasses(const stream::ModelShape& model,
                      stream::BackwardOrder order);

}  // namespace sluice::planner::train
