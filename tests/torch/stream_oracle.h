// What a step should give: plain torch autograd in fp64 on the whole sequence,
// with attention as a full matrix. Shares no code with what it judges.
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

// Gradients of loss_sum / global_count. `dtype` kDouble, or kBFloat16 for what
// plain torch would give in bf16.
OracleResult RunOracle(const stream::ModelShape& config,
                       const ModelTensors& weights, const at::Tensor& tokens,
                       const at::Tensor& labels, int64_t global_count,
                       at::ScalarType dtype = at::kDouble);

// max|a - b| / max(max|b|, 0.01 * the largest max|b| of that layer), a
// parameter; the largest of them and its parameter.
struct GradientError {
  double worst = 0;
  std::string parameter;
  // The largest of those with max|b| of 1/1000 of their layer's at least; and
  // of the others (K's bias without RoPE: zero but for rounding) the largest
  // max|a - b|, by the layer's max|b|.
  double scaled = 0, unscaled = 0;
};
GradientError CompareGradients(const stream::ModelShape& config,
                               ModelTensors& gradients,
                               const std::vector<at::Tensor>& expected);

}  // namespace sluice::runtime
