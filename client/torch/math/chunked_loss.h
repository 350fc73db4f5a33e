// Cross entropy over a few rows of logits at a time, because all logits would
// be rows * vocabulary numbers. The gradient overwrites the logits
// (kernels/ops/token_math), labels of -100 are ignored, losses are summed in
// fp64.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/math/model_tensors.h"

namespace sluice::runtime {

inline constexpr int64_t kIgnoredLabel = -100;

// Turns logits [rows, vocab] into the gradient of each row's loss * scale, and
// adds the losses to `loss_sum` (fp64 scalar tensor).
void LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                   double scale, at::Tensor& loss_sum);

// Adds the losses of `normed` [rows, hidden] against `labels` to `loss_sum`
// (fp64 scalar tensor, no host wait), and the gradient of loss * scale to
// `weight_gradient` (fp32 [vocab, hidden]). Returns d(normed), in its dtype.
at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient);

// `loss_sum` is an fp64 scalar. The host waits for the device once.
StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels);

}  // namespace sluice::runtime
