// The `alst` baseline: Arctic Long Sequence Training (arXiv 2506.13996;
// DeepSpeed's runtime/sequence_parallel/ulysses_sp.py), the best practice that
// a single command can start.
//
// Ranks exchange heads by Ulysses. Backward computes each whole layer again;
// until then, layer inputs are in host memory. Attention is whole. All else,
// the loss included, runs over tiles of rows that backward computes again with
// gradients (TiledMLP), so no [rows, ffn] and no [rows, vocab] tensor ever
// exists.
//
// It is leaner than the original where that costs nothing: norms, projections
// and RoPE are tiled too, gradients overwrite the tensors that they belong to,
// and q, k and v are exchanged one after the other. The peak, inside
// attention's backward, is 10 hidden states of this rank's rows without grouped
// queries: input, gradient, q, k, v, o, dO, dq, dk, dv. Tests limit it to 14.
//
// Throws c10::Error and StatusException. Thread safety: one thread.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "client/torch/backend/backend.h"
#include "client/torch/baseline/baseline.h"
#include "client/torch/baseline/baseline_ops.h"
#include "client/torch/exceptions.h"
#include "client/torch/math/chunked_loss.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/placement.h"
#include "client/torch/ranks/ulysses.h"
#include "planner/stream/loss_rows.h"

namespace sluice::runtime::baseline {
namespace {

struct Tile {
  int64_t begin, count;
  at::Tensor Of(const at::Tensor& t) const { return t.narrow(0, begin, count); }
};

// All heads on the token side, or all rows on the head side.
struct Projected {
  at::Tensor q, k, v;
};

AttentionResult WholeAttention(const Projected& heads) {
  return BackendOf(heads.q).Attend(heads.q, heads.k, heads.v, /*causal=*/true);
}

// Projects and rotates q, k and v of this rank's rows tile by tile, in token
// layout, then exchanges them whole, one after the other (Ulysses).
class AlstHeads {
 public:
  explicit AlstHeads(const BaselineOptions& options)
      : options_(options),
        model_(options.model),
        ranks_(options.ranks()),
        rank_(options.rank()),
        layout_(options.seq_len, options.seq_len, ranks_),
        runs_(RowRuns::Whole(layout_, 0)),
        rows_(layout_.local_rows(0, rank_)),
        exchange_(model_.heads, model_.kv_heads, ranks_, rank_,
                  options.collectives) {}

  std::vector<Tile> Tiles() const {
    // As in the original, which cuts a sequence into ceil(rows / hidden)
    // shards.
    const int64_t step =
        options_.tile_rows > 0 ? options_.tile_rows : model_.hidden;
    std::vector<Tile> tiles;
    for (int64_t begin = 0; begin < rows_; begin += step) {
      tiles.push_back({begin, std::min(step, rows_ - begin)});
    }
    return tiles;
  }

  int64_t first_position() const { return layout_.local_offset(0, rank_); }
  // Returns true with one rank, where both sides are the same tensor.
  bool local() const { return exchange_.local(); }

  at::Tensor ToHeads(HeadKind kind, at::Tensor token_side) {
    if (exchange_.local()) return token_side;
    const int64_t heads = kind == HeadKind::kQuery
                              ? exchange_.heads().q_per_rank
                              : exchange_.heads().kv_per_rank;
    at::Tensor head_side = at::empty(
        {options_.seq_len, heads, model_.head_dim()}, token_side.options());
    ThrowIfError(exchange_.ToHeads(runs_, {{kind, token_side, head_side}}));
    return head_side;
  }

  at::Tensor ToTokens(HeadKind kind, at::Tensor head_side) {
    if (exchange_.local()) return head_side;
    at::Tensor token_side = TokenSide(kind, head_side);
    ThrowIfError(exchange_.ToTokens(runs_, {{kind, token_side, head_side}}));
    return token_side;
  }

  Projected ProjectTile(const at::Tensor& x, const Tile& tile,
                        const LayerTensors& w) const {
    const int64_t dim = model_.head_dim();
    const at::Tensor h = Norm(model_, x, w.norm1_weight, w.norm1_bias);
    const auto heads = [&](const at::Tensor& weight, const at::Tensor& bias) {
      return at::linear(h, weight, bias)
          .view({tile.count, weight.size(0) / dim, dim});
    };
    return {heads(w.q_weight, w.q_bias), heads(w.k_weight, w.k_bias),
            heads(w.v_weight, w.v_bias)};
  }

  Projected RotateTile(Projected heads, const Tile& tile) const {
    if (!model_.rope) return heads;
    const Rotation rotation =
        MakeRotation(layout_.local_offset(0, rank_) + tile.begin, tile.count,
                     model_.head_dim(), model_.rope->theta, options_.device);
    return {Rotate(heads.q, rotation), Rotate(heads.k, rotation), heads.v};
  }

  // Projects the whole sequence, in head layout.
  Projected Project(const at::Tensor& x, const LayerTensors& w) {
    Projected all{TokenSide(HeadKind::kQuery, x),
                  TokenSide(HeadKind::kKeyValue, x),
                  TokenSide(HeadKind::kKeyValue, x)};
    for (const Tile& tile : Tiles()) {
      const Projected part = RotateTile(ProjectTile(tile.Of(x), tile, w), tile);
      tile.Of(all.q).copy_(part.q);
      tile.Of(all.k).copy_(part.k);
      tile.Of(all.v).copy_(part.v);
    }
    all.q = ToHeads(HeadKind::kQuery, std::move(all.q));
    all.k = ToHeads(HeadKind::kKeyValue, std::move(all.k));
    all.v = ToHeads(HeadKind::kKeyValue, std::move(all.v));
    return all;
  }

 private:
  at::Tensor TokenSide(HeadKind kind, const at::Tensor& like) const {
    const int64_t heads =
        kind == HeadKind::kQuery ? model_.heads : model_.kv_heads;
    return at::empty({rows_, heads, model_.head_dim()}, like.options());
  }

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const int ranks_, rank_;
  const stream::ChunkLayout layout_;
  const RowRuns runs_;
  const int64_t rows_;
  HeadExchange exchange_;
};

using LayerMember = at::Tensor LayerTensors::*;

// A part of the model that backward runs again, with gradients, tile by tile.
class Section {
 public:
  Section() = default;
  // Adds, as parameters, those of `members` that the layer has.
  Section(const LayerTensors& weights, const LayerTensors& gradients,
          std::span<const LayerMember> members) {
    for (const LayerMember member : members) {
      layer_.*member = Add(weights.*member, gradients.*member);
    }
  }

  // Adds a parameter and returns its leaf; undefined if the parameter is.
  at::Tensor Add(const at::Tensor& weight, const at::Tensor& gradient) {
    if (!weight.defined()) return {};
    inputs_.push_back(Leaf(weight));
    gradients_.push_back(gradient);
    return inputs_.back();
  }

  const LayerTensors& layer() const { return layer_; }

  // Adds a bias that was added to every row of `rows`, on which the outputs
  // depend. Its gradient is summed in fp32: autograd would round each tile's
  // sum to bf16, which shows if the exact sum is zero (k's bias without RoPE).
  void AddSummed(const at::Tensor& rows, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    summed_.push_back(rows);
    sums_.push_back(gradient);
  }

  // Differentiates `outputs` (made from leaf `x` and the parameters) with their
  // gradients `seeds`. Adds the parameters' gradients and returns x's.
  at::Tensor Backward(std::vector<at::Tensor> outputs,
                      std::vector<at::Tensor> seeds, const at::Tensor& x) {
    std::vector<at::Tensor> inputs = inputs_;
    const std::vector<at::Tensor> summed = std::exchange(summed_, {});
    inputs.insert(inputs.end(), summed.begin(), summed.end());
    inputs.push_back(x);
    const std::vector<at::Tensor> found =
        torch::autograd::grad(outputs, inputs, seeds);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      gradients_[i].add_(found[i]);
    }
    for (size_t i = 0; i < summed.size(); ++i) {
      sums_[i].add_(
          at::sum(found[gradients_.size() + i], {0}, false, at::kFloat)
              .view_as(sums_[i]));
    }
    sums_.clear();
    return found.back();
  }

 private:
  LayerTensors layer_;  // leaves
  std::vector<at::Tensor> inputs_, gradients_;
  std::vector<at::Tensor> summed_, sums_;  // of the next Backward
};

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
                  int64_t global_count) {
    const at::AutoGradMode no_gradients(false);
    const SettleAtEnd settle(inputs_);
    const int64_t first = heads_.first_position();
    at::Tensor x = Embed(weights_, tokens, first);
    for (int64_t i = 0; i < model_.layers; ++i) LayerForward(x, i);
    Head(x, labels, global_count);
    for (int64_t i = model_.layers - 1; i >= 0; --i) LayerBackward(x, i);
    for (const Tile& tile : tiles_) {
      EmbedBackward(gradients_, tile.Of(tokens), tile.Of(x),
                    first + tile.begin);
    }
    return ReadResult(loss_sum_, labels);
  }

 private:
  at::Tensor OutputTile(const at::Tensor& o, const LayerTensors& w) const {
    return at::linear(o.reshape({o.size(0), model_.query_width()}), w.o_weight,
                      w.o_bias);
  }

  at::Tensor FeedForwardTile(const at::Tensor& middle,
                             const LayerTensors& w) const {
    return FeedForward(model_,
                       Norm(model_, middle, w.norm2_weight, w.norm2_bias), w);
  }

  // Overwrites x with the layer's output.
  void LayerForward(at::Tensor& x, int64_t layer) {
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

  // Overwrites `gradient` with that of the layer's input.
  void LayerBackward(at::Tensor& gradient, int64_t layer) {
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

  // Runs backward from the layer's output to attention's. Overwrites `gradient`
  // with the gradient of the residual between the halves, and `o` (token
  // layout) with its own gradient.
  void OutputBackward(const at::Tensor& x, at::Tensor& o, at::Tensor& gradient,
                      int64_t layer) {
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
      seed.add_(
          feed_forward.Backward({std::exchange(out, {})}, {seed}, middle));
      tile.Of(o).copy_(
          output.Backward({std::exchange(projected, {})}, {seed}, part));
    }
  }

  void ProjectBackward(const at::Tensor& x, const Projected& d,
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
      tile.Of(gradient).add_(
          section.Backward(std::move(outputs),
                           {tile.Of(d.q), tile.Of(d.k), tile.Of(d.v)}, part));
    }
  }

  // Runs the final norm and loss, both directions; x becomes its gradient.
  void Head(at::Tensor& x, const at::Tensor& labels, int64_t global_count) {
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

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const ModelTensors& weights_;
  ModelTensors& gradients_;
  HostInputs& inputs_;
  AlstHeads heads_;
  const std::vector<Tile> tiles_;
  at::Tensor loss_sum_;
};

}  // namespace

StepResult AlstStep(const BaselineOptions& options, const ModelTensors& weights,
                    ModelTensors& gradients, const at::Tensor& tokens,
                    const at::Tensor& labels, int64_t global_count) {
  return AlstRun(options, weights, gradients)
      .Step(tokens, labels, global_count);
}

}  // namespace sluice::runtime::baseline
