// A model's zero or initial weights as separate tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <vector>

#include "client/torch/math/model_tensors.h"
#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {

// Returns zeros, with one allocation per tensor. For gradients pass kFloat.
inline ModelTensors ZeroTensors(const stream::ModelShape& config,
                                at::ScalarType dtype, at::Device device) {
  ModelTensors tensors;
  const std::vector<std::vector<int64_t>> shapes = TensorShapes(config);
  const std::vector<NamedTensor> named = NamedTensors(config, tensors);
  for (size_t i = 0; i < named.size(); ++i) {
    *named[i].tensor = at::zeros(shapes[i], On(device, dtype));
  }
  return tensors;
}

// Draws each tensor as DrawWeights does, in `dtype` on `device`.
inline ModelTensors InitialTensors(const stream::ModelShape& config,
                                   at::ScalarType dtype, at::Device device,
                                   uint64_t seed) {
  ModelTensors tensors = ZeroTensors(config, dtype, device);
  const std::vector<NamedTensor> named = NamedTensors(config, tensors);
  SLUICE_CHECK_OK(
      DrawWeights(config, seed, [&](size_t i, const at::Tensor& drawn) {
        named[i].tensor->copy_(drawn);
        return absl::OkStatus();
      }));
  return tensors;
}

}  // namespace sluice::runtime
