// Copies a model's tensors to another device.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/math/model_tensors.h"

namespace sluice::runtime {

inline ModelTensors Copied(const stream::ModelShape& model,
                           const ModelTensors& tensors, at::Device device) {
  ModelTensors to = tensors;
  for (const NamedTensor& named : NamedTensors(model, to)) {
    *named.tensor = named.tensor->to(device);
  }
  return to;
}

}  // namespace sluice::runtime
