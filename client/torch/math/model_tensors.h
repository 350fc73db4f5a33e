// A model's tensors, their order and their initial values: weights in the
// model's dtype, gradients of the same shape in fp32, in the trainer's memory.
//
// Thread safety: values (tensors are reference counted).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

inline at::ScalarType TorchType(stream::Dtype dtype) {
  return dtype == stream::Dtype::kFp32 ? at::kFloat : at::kBFloat16;
}

// One layer's tensors; unused ones are undefined. Linear weights are [out, in].
struct LayerTensors {
  at::Tensor norm1_weight, norm1_bias;
  at::Tensor q_weight, q_bias, k_weight, k_bias, v_weight, v_bias;
  at::Tensor o_weight, o_bias;
  at::Tensor norm2_weight, norm2_bias;
  at::Tensor gate_weight;  // SwiGLU only
  at::Tensor up_weight, up_bias, down_weight, down_bias;
};

// The whole model. `head` is undefined if it is tied to `embed`; `positions`
// and `final_norm_bias` if the model has none.
struct ModelTensors {
  at::Tensor embed;      // [vocab, hidden]
  at::Tensor positions;  // [max_positions, hidden]
  std::vector<LayerTensors> layers;
  at::Tensor final_norm_weight, final_norm_bias;  // [hidden]
  at::Tensor head;                                // [vocab, hidden]

  const at::Tensor& logits_weight() const {
    return head.defined() ? head : embed;
  }
};

// The result of one rank's training step, by any method: the sum of its losses
// (in fp64, not divided) and the number of labels counted.
struct StepResult {
  double loss_sum = 0;
  int64_t count = 0;
};

// Names are Sluice's ("layers.2.q_weight"); checkpoints translate them.
struct NamedTensor {
  std::string name;
  at::Tensor* tensor;
  std::vector<int64_t> shape;  // required
};

// Returns every tensor that `config` has, in the fixed order in which
// optimizers, checkpoints and reductions walk a model. Resizes `tensors.layers`
// to the config's. Pointers are valid until `tensors` is resized.
std::vector<NamedTensor> NamedTensors(const stream::ModelShape& config,
                                      ModelTensors& tensors);
std::vector<NamedTensor> NamedTensors(const stream::ModelShape& config,
                                      LayerTensors& tensors);

// Returns the shape of each of NamedTensors(), in the same order.
std::vector<std::vector<int64_t>> TensorShapes(
    const stream::ModelShape& config);

// Receives the weight with this index in NamedTensors(), as a contiguous tensor
// that the receiver owns.
using TakeDrawn = std::function<absl::Status(size_t index, at::Tensor drawn)>;

// Draws a model's initial weights and calls `take` for each tensor, up to its
// first error. As in GPT-2: normal(0, init_std), the projections back into the
// residual stream scaled by 1/sqrt(2 layers), norms one, biases zero. Weights
// are drawn on the host in fp32, tensor by tensor, so a seed gives the same
// weights in every dtype and on every device.
absl::Status DrawWeights(const stream::ModelShape& config, uint64_t seed,
                         const TakeDrawn& take);

}  // namespace sluice::runtime
