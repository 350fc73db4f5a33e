#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <cmath>
#include <limits>

#include "client/train/check/check.h"

namespace sluice::train {
namespace {

using at::Tensor;

class Reference {
 public:
  Reference(const ReferenceModel& model, std::map<std::string, Tensor> weights)
      : m_(model), w_(std::move(weights)) {}

  Tensor Loss(const Tensor& ids, const Tensor& labels) {
    Tensor x = at::embedding(W("embed"), ids);
    if (!m_.llama) x = x + W("positions").narrow(0, 0, ids.size(0));
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      x = Layer(x, "layers." + std::to_string(layer) + ".");
    }
    x = Norm(x, "final_norm");
    const Tensor logits = at::linear(x, W(m_.llama ? "head" : "embed"));
    // For bf16 every method computes the loss in fp32.
    const bool half = logits.scalar_type() == at::kBFloat16;
    return at::cross_entropy_loss(half ? logits.to(at::kFloat) : logits, labels,
                                  {}, /*reduction=mean*/ 1,
                                  /*ignore_index=*/-100);
  }

 private:
  const Tensor& W(const std::string& name) const { return w_.at(name); }

  Tensor Norm(const Tensor& x, const std::string& name) {
    if (m_.llama) {
      return at::rms_norm(x, {m_.hidden}, W(name + "_weight"), m_.norm_epsilon);
    }
    return at::layer_norm(x, {m_.hidden}, W(name + "_weight"),
                          W(name + "_bias"), m_.norm_epsilon);
  }

  Tensor Linear(const Tensor& x, const std::string& name) {
    if (m_.llama) return at::linear(x, W(name + "_weight"));
    return at::linear(x, W(name + "_weight"), W(name + "_bias"));
  }

  // Reshapes [length, heads * d] to [heads, length, d]; `turned`: applies RoPE.
  Tensor Heads(const Tensor& x, int64_t heads, bool turned) {
    const int64_t d = m_.hidden / m_.heads;
    const Tensor split = x.view({x.size(0), heads, d}).transpose(0, 1);
    return turned && m_.llama ? Turn(split, d) : split;
  }

  // Applies rotary positions to pairs of a head's first and second half.
  Tensor Turn(const Tensor& x, int64_t d) {
    const auto wide = at::kDouble;
    const Tensor rate = at::pow(
        m_.rope_theta, at::arange(0, d, 2, wide) / static_cast<double>(-d));
    const Tensor angle = at::arange(x.size(1), wide).unsqueeze(1) * rate;
    const Tensor both = at::cat({angle, angle}, 1);
    const Tensor left = x.narrow(2, 0, d / 2),
                 right = x.narrow(2, d / 2, d / 2);
    return x * both.cos().to(x.scalar_type()) +
           at::cat({-right, left}, 2) * both.sin().to(x.scalar_type());
  }

  Tensor Attention(const Tensor& x, const std::string& p) {
    const int64_t n = x.size(0), group = m_.heads / m_.kv_heads;
    const Tensor q = Heads(Linear(x, p + "q"), m_.heads, true);
    const Tensor k = Heads(Linear(x, p + "k"), m_.kv_heads, true)
                         .repeat_interleave(group, 0);
    const Tensor v = Heads(Linear(x, p + "v"), m_.kv_heads, false)
                         .repeat_interleave(group, 0);
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    const Tensor hidden_future = at::triu(
        at::full({n, n}, -std::numeric_limits<double>::infinity(), x.options()),
        1);
    const Tensor scores =
        at::matmul(q, k.transpose(1, 2)) * scale + hidden_future;
    const Tensor mixed = at::matmul(at::softmax(scores, -1), v);
    return Linear(mixed.transpose(0, 1).reshape({n, m_.hidden}), p + "o");
  }

  Tensor FeedForward(const Tensor& x, const std::string& p) {
    const Tensor up = Linear(x, p + "up");
    const Tensor inner =
        m_.llama ? at::silu(Linear(x, p + "gate")) * up : at::gelu(up, "tanh");
    return Linear(inner, p + "down");
  }

  Tensor Layer(const Tensor& x, const std::string& p) {
    const Tensor y = x + Attention(Norm(x, p + "norm1"), p);
    return y + FeedForward(Norm(y, p + "norm2"), p);
  }

  ReferenceModel m_;
  std::map<std::string, Tensor> w_;
};

}  // namespace

ReferenceResult RunReference(const ReferenceModel& model,
                             const std::map<std::string, at::Tensor>& weights,
                             const at::Tensor& ids, const at::Tensor& labels,
                             at::ScalarType dtype) {
  std::map<std::string, Tensor> leaves;
  for (const auto& [name, weight] : weights) {
    leaves[name] =
        weight.detach().to(dtype, false, /*copy=*/true).requires_grad_(true);
  }
  const Tensor loss = Reference(model, leaves).Loss(ids, labels);
  loss.backward();
  ReferenceResult result;
  result.loss = loss.item().toDouble();
  for (auto& [name, leaf] : leaves) result.gradients[name] = leaf.grad();
  return result;
}

}  // namespace sluice::train
