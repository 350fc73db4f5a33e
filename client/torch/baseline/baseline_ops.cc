#include "client/torch/baseline/baseline_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "client/torch/exceptions.h"
#include "client/torch/math/chunked_loss.h"
#include "client/torch/placement.h"
#include "planner/stream/loss_rows.h"

namespace sluice::runtime::baseline {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Computes x / rms(x) * weight over the last dimension, in fp32.
struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, double epsilon) {
    const at::Tensor x32 = x.to(at::kFloat);
    const at::Tensor scale =
        at::mean(at::square(x32), {-1}, true).add_(epsilon).rsqrt_();
    context->save_for_backward({x, weight, scale});
    return (x32 * scale).mul_(weight).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context,
                                variable_list outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor normed = saved[0].to(at::kFloat) * saved[2];
    at::Tensor dx = outputs[0].to(at::kFloat);
    at::Tensor dweight = at::sum(dx * normed, {0}).to(saved[1].scalar_type());
    dx = dx * saved[1];
    const at::Tensor mean = at::mean(dx * normed, {-1}, true);
    dx.addcmul_(normed, mean, -1).mul_(saved[2]);
    return {dx.to(saved[0].scalar_type()), dweight, at::Tensor()};
  }
};

// Rotates pairs: (a, b) -> (a cos - sign b sin, b cos + sign a sin).
at::Tensor Turn(const at::Tensor& x, const at::Tensor& cos,
                const at::Tensor& sin, double sign) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  at::Tensor turned = at::empty(x.sizes(), x.options());
  turned.narrow(2, 0, half).copy_((a * cos).addcmul_(b, sin, -sign));
  turned.narrow(2, half, half).copy_((b * cos).addcmul_(a, sin, sign));
  return turned;
}

struct RotateFunction : Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return Turn(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* context,
                                variable_list outputs) {
    const variable_list saved = context->get_saved_variables();
    return {Turn(outputs[0], saved[0], saved[1], -1), at::Tensor(),
            at::Tensor()};
  }
};

// The parts of a head exchange that backward needs. Not owned.
struct Route {
  HeadExchange* exchange;
  const RowRuns* runs;

  int64_t chunk_rows() const { return runs->begin.back() + runs->count.back(); }
};

void Remember(AutogradContext* context, Route route) {
  context->saved_data["exchange"] = reinterpret_cast<int64_t>(route.exchange);
  context->saved_data["runs"] = reinterpret_cast<int64_t>(route.runs);
}

Route Recall(AutogradContext* context) {
  return {
      reinterpret_cast<HeadExchange*>(context->saved_data["exchange"].toInt()),
      reinterpret_cast<const RowRuns*>(context->saved_data["runs"].toInt())};
}

at::Tensor Like(const at::Tensor& model, int64_t rows, int64_t heads) {
  return at::empty({rows, heads, model.size(2)}, model.options());
}

struct ToHeadsFunction : Function<ToHeadsFunction> {
  static variable_list forward(AutogradContext* context, Route route,
                               const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v) {
    Remember(context, route);
    context->saved_data["heads"] = q.size(1);
    context->saved_data["kv_heads"] = k.size(1);
    context->saved_data["rows"] = q.size(0);
    const stream::HeadLayout& layout = route.exchange->heads();
    const int64_t rows = route.chunk_rows();
    const at::Tensor q_out = Like(q, rows, layout.q_per_rank);
    const at::Tensor k_out = Like(k, rows, layout.kv_per_rank);
    const at::Tensor v_out = Like(v, rows, layout.kv_per_rank);
    ThrowIfError(route.exchange->ToHeads(*route.runs,
                                         {{HeadKind::kQuery, q, q_out},
                                          {HeadKind::kKeyValue, k, k_out},
                                          {HeadKind::kKeyValue, v, v_out}}));
    return {q_out, k_out, v_out};
  }
  static variable_list backward(AutogradContext* context,
                                variable_list outputs) {
    const Route route = Recall(context);
    const int64_t rows = context->saved_data["rows"].toInt();
    const int64_t kv_heads = context->saved_data["kv_heads"].toInt();
    const at::Tensor dq =
        Like(outputs[0], rows, context->saved_data["heads"].toInt());
    const at::Tensor dk = Like(outputs[1], rows, kv_heads);
    const at::Tensor dv = Like(outputs[2], rows, kv_heads);
    ThrowIfError(route.exchange->ToTokens(
        *route.runs, {{HeadKind::kQuery, dq, outputs[0]},
                      {HeadKind::kKeyValue, dk, outputs[1]},
                      {HeadKind::kKeyValue, dv, outputs[2]}}));
    return {at::Tensor(), dq, dk, dv};
  }
};

struct ToTokensFunction : Function<ToTokensFunction> {
  static at::Tensor forward(AutogradContext* context, Route route,
                            const at::Tensor& o, int64_t rows, int64_t heads) {
    Remember(context, route);
    const at::Tensor home = Like(o, rows, heads);
    ThrowIfError(
        route.exchange->ToTokens(*route.runs, {{HeadKind::kQuery, home, o}}));
    return home;
  }
  static variable_list backward(AutogradContext* context,
                                variable_list outputs) {
    const Route route = Recall(context);
    const at::Tensor d_o = Like(outputs[0], route.chunk_rows(),
                                route.exchange->heads().q_per_rank);
    ThrowIfError(route.exchange->ToHeads(
        *route.runs, {{HeadKind::kQuery, outputs[0], d_o}}));
    return {at::Tensor(), d_o, at::Tensor(), at::Tensor()};
  }
};

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

Rotation MakeRotation(int64_t first_position, int64_t rows, int64_t dim,
                      double theta, at::Device device) {
  const at::TensorOptions wide = On(device, at::kDouble);
  const at::Tensor frequency =
      at::pow(theta, at::arange(0, dim, 2, wide).neg_().div_(dim));
  const at::Tensor angle =
      at::outer(at::arange(first_position, first_position + rows, wide),
                frequency)
          .view({rows, 1, dim / 2});
  return {at::cos(angle).to(at::kFloat), at::sin(angle).to(at::kFloat)};
}

at::Tensor Rotate(const at::Tensor& x, const Rotation& rotation) {
  return RotateFunction::apply(x, rotation.cos, rotation.sin);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ToHeads(HeadExchange* exchange,
                                                       const RowRuns* runs,
                                                       const at::Tensor& q,
                                                       const at::Tensor& k,
                                                       const at::Tensor& v) {
  const variable_list out =
      ToHeadsFunction::apply(Route{exchange, runs}, q, k, v);
  return {out[0], out[1], out[2]};
}

at::Tensor ToTokens(HeadExchange* exchange, const RowRuns* runs,
                    const at::Tensor& o, int64_t rows, int64_t heads) {
  return ToTokensFunction::apply(Route{exchange, runs}, o, rows, heads);
}

at::Tensor Leaf(const at::Tensor& tensor) {
  return tensor.detach().requires_grad_(true);
}

at::Tensor Norm(const stream::ModelShape& model, const at::Tensor& x,
                const at::Tensor& weight, const at::Tensor& bias) {
  if (model.norm == stream::NormKind::kRmsNorm) {
    return RmsNormFunction::apply(x, weight, model.norm_epsilon);
  }
  return at::layer_norm(x, {model.hidden}, weight, bias, model.norm_epsilon);
}

at::Tensor FeedForward(const stream::ModelShape& model, const at::Tensor& h,
                       const LayerTensors& w) {
  at::Tensor up = at::linear(h, w.up_weight, w.up_bias);
  if (model.gated) {
    up = at::silu(at::linear(h, w.gate_weight)) * up;
  } else {
    up = at::gelu(up, "tanh");
  }
  return at::linear(up, w.down_weight, w.down_bias);
}

at::Tensor Embed(const ModelTensors& weights, const at::Tensor& tokens,
                 int64_t first_position) {
  at::Tensor x = at::index_select(weights.embed, 0, tokens);
  if (weights.positions.defined()) {
    x.add_(weights.positions.narrow(0, first_position, tokens.size(0)));
  }
  return x;
}

void EmbedBackward(ModelTensors& gradients, const at::Tensor& tokens,
                   const at::Tensor& gradient, int64_t first_position) {
  const at::Tensor gradient32 = gradient.to(at::kFloat);
  gradients.embed.index_add_(0, tokens, gradient32);
  if (gradients.positions.defined()) {
    gradients.positions.narrow(0, first_position, tokens.size(0))
        .add_(gradient32);
  }
}

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
