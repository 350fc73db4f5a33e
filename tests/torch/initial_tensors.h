// A model's initial weights as separate tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/torch/math/first_weights.h"
#include "client/torch/math/model_tensors.h"
#include "proto/base/status.h"

namespace sluice::runtime {

// Draws each tensor as first_weights.h does, in `dtype` on `device`.
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
