// The oracle of `check`: the same model in plain torch, with the whole
// sequence, the whole attention matrix and autograd, in any dtype.
//
// It shares no code with the streamed path: its input is plain numbers and a
// map of weights, its output a loss and a map of gradients. Names are those of
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
  // in the dtype of the computation
  std::map<std::string, at::Tensor> gradients;
};

// Computes the loss, which is the mean over the labels that count, and its
// gradients. `ids` and `labels` are int64 [length]; label -100 is ignored.
ReferenceResult RunReference(const ReferenceModel& model,
                             const std::map<std::string, at::Tensor>& weights,
                             const at::Tensor& ids, const at::Tensor& labels,
                             at::ScalarType dtype);

}  // namespace sluice::train
