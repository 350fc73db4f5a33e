// Computes cross entropy over a few rows of logits at a time, because all
// logits would be rows * vocabulary numbers. The gradient overwrites the logits
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

// Adds the loss and gradients of `normed` [rows, hidden] against `labels`
// [rows].
//   loss_sum  fp64 scalar tensor: the sum of losses is added (no host wait)
//   weight_gradient  fp32 [vocab, hidden]: added to
//   returns   d(normed), in its dtype
// Gradients are of loss * scale.
at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient);

// Returns a step's result from `loss_sum` (fp64 scalar) and the labels. The
// host waits for the device once.
StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels);

}  // namespace sluice::runtime
