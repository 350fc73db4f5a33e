// Parts of a model that the baselines share. Autograd functions of our own
// where ATen's graph would be needlessly large (RMSNorm, RoPE) or has no
// operator (head exchange, the loss).
//
// Throw c10::Error and StatusException. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "client/torch/baseline/baseline.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/ulysses.h"

namespace sluice::runtime::baseline {

// Rotate-half: `cos` and `sin` are [rows, 1, dim / 2] in fp32.
struct Rotation {
  at::Tensor cos, sin;
};
Rotation MakeRotation(int64_t first_position, int64_t rows, int64_t dim,
                      double theta, at::Device device);
at::Tensor Rotate(const at::Tensor& x, const Rotation& rotation);

// Exchanges q, k, v of this rank's tokens for those of this rank's heads.
// `exchange` must live until backward is done.
std::tuple<at::Tensor, at::Tensor, at::Tensor> ToHeads(HeadExchange* exchange,
                                                       const RowRuns* runs,
                                                       const at::Tensor& q,
                                                       const at::Tensor& k,
                                                       const at::Tensor& v);
at::Tensor ToTokens(HeadExchange* exchange, const RowRuns* runs,
                    const at::Tensor& o, int64_t rows, int64_t heads);

// Computes the loss of `hidden` [rows, hidden] and, at once, its gradients:
// logits of at most `rows_at_once` rows at a time. Adds to `weight_gradient`
// (fp32) and to `loss_sum` (an fp64 scalar tensor, so the host waits for none
// of the calls). Returns the gradient of `hidden`.
at::Tensor ChunkedLoss(const at::Tensor& hidden, const at::Tensor& weight,
                       at::Tensor& weight_gradient, const at::Tensor& labels,
                       int64_t global_count, int64_t rows_at_once,
                       at::Tensor& loss_sum);

// Returns the same memory as a leaf of a new graph.
at::Tensor Leaf(const at::Tensor& tensor);

// Computes LayerNorm (GPT) or RMSNorm (Llama, no bias).
at::Tensor Norm(const stream::ModelShape& model, const at::Tensor& x,
                const at::Tensor& weight, const at::Tensor& bias);

// Computes GELU (GPT) or SwiGLU (Llama); `h` is the norm's output.
at::Tensor FeedForward(const stream::ModelShape& model, const at::Tensor& h,
                       const LayerTensors& w);

// Embeds `tokens`; the first one has this position in the sequence.
at::Tensor Embed(const ModelTensors& weights, const at::Tensor& tokens,
                 int64_t first_position);
void EmbedBackward(ModelTensors& gradients, const at::Tensor& tokens,
                   const at::Tensor& gradient, int64_t first_position);

// Runs BaselineStep's alst method for arguments that are already checked.
StepResult AlstStep(const BaselineOptions& options, const ModelTensors& weights,
                    ModelTensors& gradients, const at::Tensor& tokens,
                    const at::Tensor& labels, int64_t global_count);

}  // namespace sluice::runtime::baseline
