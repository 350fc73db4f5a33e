#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "client/torch/baseline/baseline_ops.h"
#include "client/torch/math/chunked_loss.h"
#include "planner/stream/loss_rows.h"

namespace sluice::runtime::baseline {
namespace {

// Adds the losses of a few rows to `loss_sum`; returns d(sum / global_count) /
// d(logits) in fp32.
at::Tensor RowsLoss(const at::Tensor& logits, const at::Tensor& labels,
                    int64_t global_count, at::Tensor& loss_sum) {
  const at::Tensor counted = labels.ne(kIgnoredLabel);
  const at::Tensor columns = labels.clamp_min(0).unsqueeze(1);
  at::Tensor log_p = at::_log_softmax(logits, -1, /*half_to_float=*/false);
  const at::Tensor picked =
      at::gather(log_p, 1, columns).squeeze(1).mul_(counted);
  loss_sum.sub_(at::sum(picked, at::kDouble));
  at::Tensor gradient = log_p.exp_();
  gradient.scatter_add_(1, columns, at::full_like(picked, -1).unsqueeze(1));
  const at::Tensor weight = counted.to(at::kFloat).div_(global_count);
  return gradient.mul_(weight.unsqueeze(1));
}

}  // namespace

at::Tensor ChunkedLoss(const at::Tensor& hidden, const at::Tensor& weight,
                       at::Tensor& weight_gradient, const at::Tensor& labels,
                       int64_t global_count, int64_t rows_at_once,
                       at::Tensor& loss_sum) {
  const int64_t rows = hidden.size(0);
  const int64_t step = stream::CutLoss(rows, rows_at_once).rows;
  at::Tensor hidden_gradient = at::empty_like(hidden);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor part = hidden.narrow(0, begin, count);
    at::Tensor d_logits =
        RowsLoss(at::mm(part, weight.t()).to(at::kFloat),
                 labels.narrow(0, begin, count), global_count, loss_sum)
            .to(hidden.scalar_type());
    hidden_gradient.narrow(0, begin, count).copy_(at::mm(d_logits, weight));
    if (hidden.scalar_type() == at::kFloat) {
      weight_gradient.addmm_(d_logits.t(), part);
    } else {
      weight_gradient.add_(at::mm(d_logits.t(), part));
    }
  }
  return hidden_gradient;
}

}  // namespace sluice::runtime::baseline
