// The oracle of the gradient tests: one whole sequence, plain autograd, naive
// attention with a mask, log_softmax over whole logits. Written from the model
// definitions; shares no code with what it judges. Use it in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "client/torch/model_tensors.h"

namespace sluice::runtime {

struct PlainResult {
  double loss_sum = 0;
  int64_t count = 0;
  ModelTensors gradients;  // of loss_sum / count, in the weights' dtype
};

PlainResult PlainStep(const ModelConfig& config, const ModelTensors& weights,
                      const at::Tensor& tokens, const at::Tensor& labels);

// A copy in another dtype.
ModelTensors CopyTensors(const ModelConfig& config, const ModelTensors& from,
                         at::ScalarType dtype);

// The greatest max|a - b| / max(max|b|, 0.01 of the greatest max|b| among the
// parameters of that layer), and whose it is.
struct GradientError {
  double relative = 0;
  std::string worst;
};
GradientError CompareGradients(const ModelConfig& config, ModelTensors a,
                               ModelTensors b);

}  // namespace sluice::runtime
