#include "client/torch/math/chunked_loss.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "client/torch/math/token_math.h"

namespace sluice::runtime {
namespace {

// p minus one at the label: the gradient of each row's loss by its logits
// [rows, vocab], those of ignored rows too. Adds the loss of rows that are
// `counted` (1, else 0).
at::Tensor LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                         const at::Tensor& counted, at::Tensor& loss_sum) {
  at::Tensor log_p = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  const at::Tensor column = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor picked = log_p.gather(1, column);
  loss_sum.sub_(at::sum(picked * counted, at::kDouble));
  log_p.exp_();  // now p
  return log_p.scatter_add_(1, column, at::full_like(picked, -1));
}

}  // namespace

at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient) {
  at::Tensor gradient =
      at::empty(normed.sizes(), normed.options().dtype(at::kFloat));
  at::Tensor no_bias;
  for (int64_t row = 0; row < normed.size(0); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, normed.size(0) - row);
    at::Tensor out = gradient.narrow(0, row, rows);
    const at::Tensor x = normed.narrow(0, row, rows);
    const at::Tensor some = labels.narrow(0, row, rows);
    const at::Tensor counted =
        some.ne(kIgnoredLabel).to(at::kFloat).unsqueeze(1);
    const at::Tensor d_logits = LogitGradient(
        at::mm(x, weight.t()).to(at::kFloat), some, counted, loss_sum);
    // A row's factor is put to its hidden state: the logits are far wider.
    const at::Tensor factor = counted.mul(scale);
    LinearBackwardWeight(x * factor, d_logits, weight_gradient, no_bias);
    at::mul_out(out, LinearBackwardInput(d_logits, weight), factor);
  }
  return gradient;
}

StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels) {
  const at::Tensor count =
      at::sum(labels.ne(kIgnoredLabel), at::kDouble);  // exact to 2^53
  // The two as one number, which is what torch reads at once.
  const auto both = at::complex(loss_sum, count).item<c10::complex<double>>();
  return {both.real(), static_cast<int64_t>(both.imag())};
}

}  // namespace sluice::runtime
