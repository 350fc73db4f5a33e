// Autograd functions of the baselines, where ATen's own graph would be
// needlessly large (RMSNorm, RoPE) or has no operator (head exchange, the
// loss).
//
// Throw c10::Error and StatusException. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/ulysses.h"

namespace sluice::runtime::baseline {

// Returns x / rms(x) * weight over the last dimension, computed in fp32.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight,
                   double epsilon);

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

// Computes causal attention of [rows, heads, dim] by the device's backend
// (backend.h); autograd uses the backend's backward.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v);

// Computes the loss of `hidden` [rows, hidden] and, at once, its gradients:
// logits of at most `rows_at_once` rows at a time. Adds to `weight_gradient`
// (fp32) and to `loss_sum` (an fp64 scalar tensor, so the host waits for none
// of the calls). Returns the gradient of `hidden`.
at::Tensor ChunkedLoss(const at::Tensor& hidden, const at::Tensor& weight,
                       at::Tensor& weight_gradient, const at::Tensor& labels,
                       int64_t global_count, int64_t rows_at_once,
                       at::Tensor& loss_sum);

}  // namespace sluice::runtime::baseline
