// The expected result of a step: plain torch autograd in fp64 on the whole
// sequence, with attention as a full matrix. Shares no code with the tested
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/torch/math/model_tensors.h"

namespace sluice::runtime {

struct OracleResult {
  double loss_sum = 0;
  std::vector<at::Tensor> gradients;  // fp64, in the order of NamedTensors
};

// Returns the gradients of loss_sum / global_count. `dtype`: kDouble, or
// kBFloat16 for the result of plain torch in bf16.
OracleResult RunOracle(const stream::ModelShape& config,
                       const ModelTensors& weights, const at::Tensor& tokens,
                       const at::Tensor& labels, int64_t global_count,
                       at::ScalarType dtype = at::kDouble);

// The error of a parameter is max|a - b| / max(max|b|, 0.01 * the largest
// max|b| of its layer). `worst` is the largest error, that of `parameter`.
struct GradientError {
  double worst = 0;
  std::string parameter;
  // `scaled` is the largest error of parameters with max|b| of at least 1/1000
  // of the layer's. `unscaled` is the largest max|a - b| of the others,
  // relative to the layer's max|b| (K's bias without RoPE: only rounding
  // errors).
  double scaled = 0, unscaled = 0;
};
GradientError CompareGradients(const stream::ModelShape& config,
                               ModelTensors& gradients,
                               const std::vector<at::Tensor>& expected);

}  // namespace sluice::runtime
