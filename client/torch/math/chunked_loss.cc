#include "client/torch/math/chunked_loss.h"

#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "client/torch/math/token_calls.h"
#include "client/torch/math/token_math.h"

namespace sluice::runtime {
void LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                   double scale, at::Tensor& loss_sum) {
  const at::Tensor losses =
      at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  {
    const ObservedCall observed("sluice::softmax_gradient", {logits, labels},
                                {logits, losses});
    ForElement(logits.scalar_type(), [&]<typename T>() {
      BackendOf(logits).Compute(
          SoftmaxCall<T>{{.rows = logits.size(0),
                          .width = logits.size(1),
                          .ignored = kIgnoredLabel,
                          .scale = static_cast<float>(scale)},
                         {.logits = Elements<T>(logits),
                          .labels = Elements<int64_t>(labels),
                          .loss = Elements<float>(losses)}});
    });
  }
  loss_sum.add_(at::sum(losses, at::kDouble));
}

at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient) {
  at::Tensor gradient = at::empty_like(normed);
  at::Tensor no_bias;
  for (int64_t row = 0; row < normed.size(0); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, normed.size(0) - row);
    const at::Tensor out = gradient.narrow(0, row, rows);
    const at::Tensor x = normed.narrow(0, row, rows);
    const at::Tensor d_logits = LinearForward(x, weight, {});
    LogitGradient(d_logits, labels.narrow(0, row, rows), scale, loss_sum);
    LinearBackwardWeight(x, {{d_logits, weight_gradient, no_bias}});
    LinearBackwardInput(d_logits, weight, out);
  }
  return gradient;
}

StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels) {
  const at::Tensor count =
      at::sum(labels.ne(kIgnoredLabel), at::kDouble);  // exact to 2^53
  // As one complex number, torch copies both sums to the host at once.
  const auto both = at::complex(loss_sum, count).item<c10::complex<double>>();
  return {both.real(), static_cast<int64_t>(both.imag())};
}

}  // namespace sluice::runtime
