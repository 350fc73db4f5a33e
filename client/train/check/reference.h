// The oracle of `check`: the same model in plain torch, whole sequence, whole
// attention matrix, autograd, any dtype.
//
// It shares no code with the streamed path: plain numbers and a map of
// weights in, a loss and a map of gradients out. Names are those of the flat
// model ("layers.0.q_weight").
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
  std::map<std::string, at::Tensor> gradients;  // in the dtype computed in
};

// `ids` and `labels`: int64 [length]; label -100 is ignored; the loss is the
// mean over the others.
ReferenceResult RunReference(const ReferenceModel& model,
                             const std::map<std::string, at::Tensor>& weights,
                             const at::Tensor& ids, const at::Tensor& labels,
                             at::ScalarType dtype);

}  // namespace sluice::train
