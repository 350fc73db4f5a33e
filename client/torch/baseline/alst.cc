#include "client/torch/baseline/alst.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <tuple>
#include <utility>

#include "client/torch/backend/backend.h"
#include "client/torch/baseline/alst_heads.h"
#include "client/torch/baseline/alst_section.h"
#include "client/torch/baseline/baseline_ops.h"
#include "client/torch/baseline/baseline_parts.h"
#include "client/torch/exceptions.h"
#include "client/torch/math/chunked_loss.h"
#include "client/torch/placement.h"
#include "planner/stream/loss_rows.h"

namespace sluice::runtime::baseline {
namespace {

using L = LayerTensors;
constexpr LayerMember kProjections[] = {
    &L::norm1_weight, &L::norm1_bias, &L::q_weight, &L::k_weight, &L::v_weight};
constexpr LayerMember kOutput[] = {&L::o_weight, &L::o_bias};
constexpr LayerMember kFeedForward[] = {
    &L::norm2_weight, &L::norm2_bias,  &L::gate_weight, &L::up_weight,
    &L::up_bias,      &L::down_weight, &L::down_bias};

// Waits, also if a step ends early, for copies that still use tensors' memory.
class SettleAtEnd {
 public:
  explicit SettleAtEnd(HostInputs& inputs) : inputs_(inputs) {}
  ~SettleAtEnd() { inputs_.Settle(); }
  SettleAtEnd(const SettleAtEnd&) = delete;

 private:
  HostInputs& inputs_;
};

class AlstRun {
 public:
  AlstRun(const BaselineOptions& options, const ModelTensors& weights,
          ModelTensors& gradients)
      : options_(options),
        model_(options.model),
        weights_(weights),
        gradients_(gradients),
        inputs_(*options.inputs),
        heads_(options),
        tiles_(heads_.Tiles()),
        loss_sum_(at::zeros({}, On(options.device, at::kDouble))) {}

  StepResult Step(const at::Tensor& tokens, const at::Tensor& labels,
                  int64_t global_count);

 private:
  at::Tensor OutputTile(const at::Tensor& o, const LayerTensors& w) const;
  at::Tensor FeedForwardTile(const at::Tensor& middle,
                             const LayerTensors& w) const;
  // Overwrites x with the layer's output.
  void LayerForward(at::Tensor& x, int64_t layer);
  // Overwrites `gradient` with that of the layer's input.
  void LayerBackward(at::Tensor& gradient, int64_t layer);
  // Runs backward from the layer's output to attention's. Overwrites `gradient`
  // with the gradient of the residual between the halves, and `o` (token
  // layout) with its own gradient.
  void OutputBackward(const at::Tensor& x, at::Tensor& o, at::Tensor& gradient,
                      int64_t layer);
  void ProjectBackward(const at::Tensor& x, const Projected& d,
                       at::Tensor& gradient, int64_t layer);
  // Runs the final norm and loss, both directions. Overwrites x with its own
  // gradient.
  void Head(at::Tensor& x, const at::Tensor& labels, int64_t global_count);

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const ModelTensors& weights_;
  ModelTensors& gradients_;
  HostInputs& inputs_;
  AlstHeads heads_;
  const std::vector<Tile> tiles_;
  at::Tensor loss_sum_;
};

at::Tensor AlstRun::OutputTile(const at::Tensor& o,
                               const LayerTensors& w) const {
  return at::linear(o.reshape({o.size(0), model_.query_width()}), w.o_weight,
                    w.o_bias);
}

at::Tensor AlstRun::FeedForwardTile(const at::Tensor& middle,
                                    const LayerTensors& w) const {
  return FeedForward(model_, Norm(model_, middle, w.norm2_weight, w.norm2_bias),
                     w);
}

AttentionResult WholeAttention(const Projected& heads) {
  return BackendOf(heads.q).Attend(heads.q, heads.k, heads.v, /*causal=*/true);
}

void AlstRun::LayerForward(at::Tensor& x, int64_t layer) {
  const SegmentScope segment(options_.allocator, "layer.forward");
  const LayerTensors& w = weights_.layers[layer];
  inputs_.Save(layer, x);
  at::Tensor o = WholeAttention(heads_.Project(x, w)).output;
  o = heads_.ToTokens(HeadKind::kQuery, std::move(o));
  ThrowIfError(inputs_.AwaitSaved());
  for (const Tile& tile : tiles_) {
    at::Tensor part = tile.Of(x);
    part.add_(OutputTile(tile.Of(o), w));
    part.add_(FeedForwardTile(part, w));
  }
}

void AlstRun::OutputBackward(const at::Tensor& x, at::Tensor& o,
                             at::Tensor& gradient, int64_t layer) {
  const LayerTensors& w = weights_.layers[layer];
  Section output(w, gradients_.layers[layer], kOutput);
  Section feed_forward(w, gradients_.layers[layer], kFeedForward);
  for (const Tile& tile : tiles_) {
    at::Tensor seed = tile.Of(gradient);
    const at::Tensor part = Leaf(tile.Of(o));
    at::Tensor projected, middle, out;
    {
      const at::AutoGradMode with_gradients(true);
      projected = OutputTile(part, output.layer());
      middle = Leaf(tile.Of(x) + projected);
      out = FeedForwardTile(middle, feed_forward.layer());
    }
    seed.add_(feed_forward.Backward({std::exchange(out, {})}, {seed}, middle));
    tile.Of(o).copy_(
        output.Backward({std::exchange(projected, {})}, {seed}, part));
  }
}

void AlstRun::ProjectBackward(const at::Tensor& x, const Projected& d,
                              at::Tensor& gradient, int64_t layer) {
  const LayerTensors& w = weights_.layers[layer];
  const LayerTensors& g = gradients_.layers[layer];
  Section section(w, g, kProjections);
  LayerTensors leaves = section.layer();
  std::tie(leaves.q_bias, leaves.k_bias, leaves.v_bias) =
      std::tie(w.q_bias, w.k_bias, w.v_bias);
  for (const Tile& tile : tiles_) {
    const at::Tensor part = Leaf(tile.Of(x));
    std::vector<at::Tensor> outputs;
    {
      const at::AutoGradMode with_gradients(true);
      const Projected heads = heads_.ProjectTile(part, tile, leaves);
      section.AddSummed(heads.q, g.q_bias);
      section.AddSummed(heads.k, g.k_bias);
      section.AddSummed(heads.v, g.v_bias);
      const Projected out = heads_.RotateTile(heads, tile);
      outputs = {out.q, out.k, out.v};
    }
    tile.Of(gradient).add_(section.Backward(
        std::move(outputs), {tile.Of(d.q), tile.Of(d.k), tile.Of(d.v)}, part));
  }
}

void AlstRun::LayerBackward(at::Tensor& gradient, int64_t layer) {
  const SegmentScope segment(options_.allocator, "layer.backward");
  absl::StatusOr<at::Tensor> input = inputs_.Take(layer);
  ThrowIfError(input.status());
  const at::Tensor x = *std::move(input);
  Projected d;
  {
    const Projected heads = heads_.Project(x, weights_.layers[layer]);
    const auto [o, lse] = WholeAttention(heads);
    // With one rank d_o is a copy: dO overwrites it, and attention's backward
    // still needs o.
    at::Tensor d_o = heads_.local() ? o.clone() : o;
    d_o = heads_.ToTokens(HeadKind::kQuery, std::move(d_o));
    OutputBackward(x, d_o, gradient, layer);
    d_o = heads_.ToHeads(HeadKind::kQuery, std::move(d_o));
    const AttentionGradients gradients = BackendOf(o).AttendBackward(
        {heads.q, d_o, o, lse}, heads.k, heads.v, /*causal=*/true);
    d = {gradients.q, gradients.k, gradients.v};
  }
  d.q = heads_.ToTokens(HeadKind::kQuery, std::move(d.q));
  d.k = heads_.ToTokens(HeadKind::kKeyValue, std::move(d.k));
  d.v = heads_.ToTokens(HeadKind::kKeyValue, std::move(d.v));
  // The copy overlaps with the projections' backward, if there is room.
  if (layer > 0) inputs_.Fetch(layer - 1);
  ProjectBackward(x, d, gradient, layer);
}

void AlstRun::Head(at::Tensor& x, const at::Tensor& labels,
                   int64_t global_count) {
  Section norm;
  const at::Tensor weight =
      norm.Add(weights_.final_norm_weight, gradients_.final_norm_weight);
  const at::Tensor bias =
      norm.Add(weights_.final_norm_bias, gradients_.final_norm_bias);
  at::Tensor& head_gradient =
      weights_.head.defined() ? gradients_.head : gradients_.embed;
  for (const Tile& tile : tiles_) {
    const at::Tensor part = Leaf(tile.Of(x));
    at::Tensor normed;
    {
      const at::AutoGradMode with_gradients(true);
      normed = Norm(model_, part, weight, bias);
    }
    at::Tensor gradient =
        ChunkedLoss(normed.detach(), weights_.logits_weight(), head_gradient,
                    tile.Of(labels), global_count,
                    stream::LossRows(model_, x.element_size()), loss_sum_);
    tile.Of(x).copy_(norm.Backward({std::exchange(normed, {})},
                                   {std::move(gradient)}, part));
  }
}

StepResult AlstRun::Step(const at::Tensor& tokens, const at::Tensor& labels,
                         int64_t global_count) {
  const at::AutoGradMode no_gradients(false);
  const SettleAtEnd settle(inputs_);
  const int64_t first = heads_.first_position();
  at::Tensor x = Embed(weights_, tokens, first);
  for (int64_t i = 0; i < model_.layers; ++i) LayerForward(x, i);
  Head(x, labels, global_count);
  for (int64_t i = model_.layers - 1; i >= 0; --i) LayerBackward(x, i);
  for (const Tile& tile : tiles_) {
    EmbedBackward(gradients_, tile.Of(tokens), tile.Of(x), first + tile.begin);
  }
  return ReadResult(loss_sum_, labels);
}

}  // namespace

StepResult AlstStep(const BaselineOptions& options, const ModelTensors& weights,
                    ModelTensors& gradients, const at::Tensor& tokens,
                    const at::Tensor& labels, int64_t global_count) {
  return AlstRun(options, weights, gradients)
      .Step(tokens, labels, global_count);
}

}  // namespace sluice::runtime::baseline
