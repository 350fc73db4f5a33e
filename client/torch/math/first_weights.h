// Draws a model's initial weights from a seed.
//
// As in GPT-2: normal(0, init_std), the projections back into the residual
// stream scaled by 1/sqrt(2 layers), norms one, biases zero. Weights are drawn
// on the host in fp32, tensor by tensor, so a seed gives the same weights in
// every dtype and on every device.
//
// Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// Receives the weights with this index in NamedTensors() (model_tensors.h), as
// a contiguous tensor that the receiver owns.
using TakeDrawn = std::function<absl::Status(size_t index, at::Tensor drawn)>;

// Calls `take` for each tensor. Stops at the first error of `take` and returns
// it.
absl::Status DrawWeights(const stream::ModelShape& config, uint64_t seed,
                         const TakeDrawn& take);

}  // namespace sluice::runtime
