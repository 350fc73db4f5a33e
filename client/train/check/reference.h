// The oracle of `check`: the same model in plain torch, with the whole
// attention matrix and autograd, in any dtype. It shares no code with the
// streamed path: plain numbers and a map of weights go in. Names are those of
// the flat model ("layers.0.q_weight").
// Thread safety: one thread; needs memory for layers x heads x length^2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace sluice::train {

struct ReferenceModel {
  bool llama = true;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0;
  double rope_theta = 0, norm_epsilon = 0;
};

struct ReferenceResult {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // in the computation's dtype
};

// Computes the mean loss over the labels that are not -100. `ids` and `labels`
// are int64 [length].
ReferenceResult RunReference(const ReferenceModel& model,
                             const std::map<std::string, at::Tensor>& weights,
                             const at::Tensor& ids, const at::Tensor& labels,
                             at::ScalarType dtype);

}  // namespace sluice::train
