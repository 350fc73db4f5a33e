// Parts of a layer and of the embedding that all baselines share.
//
// Throw c10::Error. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "client/torch/math/model_tensors.h"

namespace sluice::runtime::baseline {

// Returns the same memory as a leaf of a new graph.
at::Tensor Leaf(const at::Tensor& tensor);

// Computes LayerNorm (GPT) or RMSNorm (Llama, no bias).
at::Tensor Norm(const stream::ModelShape& model, const at::Tensor& x,
                const at::Tensor& weight, const at::Tensor& bias);

// Computes the feed-forward part with GELU (GPT) or SwiGLU (Llama) from the
// norm's output.
at::Tensor FeedForward(const stream::ModelShape& model, const at::Tensor& h,
                       const LayerTensors& w);

// Embeds `tokens`; the first one has this position in the sequence.
at::Tensor Embed(const ModelTensors& weights, const at::Tensor& tokens,
                 int64_t first_position);
void EmbedBackward(ModelTensors& gradients, const at::Tensor& tokens,
                   const at::Tensor& gradient, int64_t first_position);

}  // namespace sluice::runtime::baseline
