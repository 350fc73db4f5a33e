#include "client/torch/math/chunked_loss.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "client/torch/math/token_math.h"

namespace sluice::runtime {
namespace {

// Turns logits [rows, vocab] into their gradient; adds the loss.
at::Tensor LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                         double scale, at::Tensor& loss_sum) {
  at::Tensor log_p = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  const at::Tensor counted =
      labels.ne(kIgnoredLabel).to(at::kFloat).unsqueeze(1);
  const at::Tensor column = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor picked = log_p.gather(1, column).mul_(counted);
  loss_sum.sub_(at::sum(picked, at::kDouble));
  log_p.exp_();  // now p
  log_p.scatter_add_(1, column, counted.neg());
  return log_p.mul_(counted.mul(scale));
}

}  // namespace

at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient) {
  at::Tensor gradient = at::empty_like(normed);
  at::Tensor no_bias;
  for (int64_t row = 0; row < normed.size(0); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, normed.size(0) - row);
    const at::Tensor x = normed.narrow(0, row, rows);
    const at::Tensor d_logits =
        LogitGradient(at::mm(x, weight.t()).to(at::kFloat),
                      labels.narrow(0, row, rows), scale, loss_sum);
    LinearBackwardWeight(x, d_logits, weight_gradient, no_bias);
    gradient.narrow(0, row, rows).copy_(LinearBackwardInput(d_logits, weight));
  }
  return gradient;
}

}  // namespace sluice::runtime
