// A part of alst's model that backward runs again, with gradients, one tile at
// a time. Internal to client/torch/baseline.
//
// Throws c10::Error. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "client/torch/math/model_tensors.h"

namespace sluice::runtime::baseline {

using LayerMember = at::Tensor LayerTensors::*;

class Section {
 public:
  Section() = default;
  // Adds, as parameters, those of `members` that the layer has.
  Section(const LayerTensors& weights, const LayerTensors& gradients,
          std::span<const LayerMember> members);

  // Adds a parameter and returns its leaf, or an undefined tensor if the
  // parameter is undefined.
  at::Tensor Add(const at::Tensor& weight, const at::Tensor& gradient);
  const LayerTensors& layer() const { return layer_; }

  // Adds a bias that was added to every row of `rows`, which the outputs depend
  // on. The bias gradient is summed in fp32, because autograd would round each
  // tile's sum to bf16. That error shows if the exact sum is zero (k's bias
  // without RoPE).
  void AddSummed(const at::Tensor& rows, const at::Tensor& gradient);

  // Differentiates `outputs` (made from leaf `x` and the parameters) with their
  // gradients `seeds`. Adds the parameters' gradients and returns x's.
  at::Tensor Backward(std::vector<at::Tensor> outputs,
                      std::vector<at::Tensor> seeds, const at::Tensor& x);

 private:
  LayerTensors layer_;  // leaves
  std::vector<at::Tensor> inputs_, gradients_;
  std::vector<at::Tensor> summed_, sums_;  // of the next Backward
};

}  // namespace sluice::runtime::baseline
