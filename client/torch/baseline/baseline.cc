#include "client/torch/baseline/baseline.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
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
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "client/torch/backend/backend.h"
#include "client/torch/exceptions.h"
#include "client/torch/math/token_math.h"
#include "client/torch/placement.h"
#include "client/torch/ranks/ulysses.h"
#include "planner/stream/loss_rows.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// --- autograd functions ------------------------------------------------------
// They replace ATen's operators where the graph would be needlessly large
// (RMSNorm, RoPE), or where ATen has no operator (head exchange).

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
    ThrowIfError(route.exchange->ToHeads(
        *route.runs, QkvParts({q, k, v}, {q_out, k_out, v_out})));
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
        *route.runs,
        QkvParts({dq, dk, dv}, {outputs[0], outputs[1], outputs[2]})));
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

// --- parts of a model --------------------------------------------------------

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

// Rotate-half: `cos` and `sin` are [rows, 1, dim / 2] in fp32; undefined
// without RoPE.
struct Rotation {
  at::Tensor cos, sin;
};

Rotation MakeRotation(const BaselineOptions& options, int64_t first_position,
                      int64_t rows) {
  if (!options.model.rope) return {};
  const int64_t dim = options.model.head_dim();
  const at::TensorOptions wide = On(options.device, at::kDouble);
  const at::Tensor frequency = at::pow(
      options.model.rope->theta, at::arange(0, dim, 2, wide).neg_().div_(dim));
  const at::Tensor angle =
      at::outer(at::arange(first_position, first_position + rows, wide),
                frequency)
          .view({rows, 1, dim / 2});
  return {at::cos(angle).to(at::kFloat), at::sin(angle).to(at::kFloat)};
}

HeadTensors Rotate(HeadTensors heads, const Rotation& rotation) {
  if (!rotation.cos.defined()) return heads;
  heads.q = RotateFunction::apply(heads.q, rotation.cos, rotation.sin);
  heads.k = RotateFunction::apply(heads.k, rotation.cos, rotation.sin);
  return heads;
}

// Computes q, k and v from the norm's output `h`, in token layout.
HeadTensors ProjectHeads(const stream::ModelShape& model, const at::Tensor& h,
                         const LayerTensors& w) {
  const int64_t dim = model.head_dim();
  const auto heads = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(h, weight, bias)
        .view({h.size(0), weight.size(0) / dim, dim});
  };
  return {heads(w.q_weight, w.q_bias), heads(w.k_weight, w.k_bias),
          heads(w.v_weight, w.v_bias)};
}

AttentionResult Attend(const HeadTensors& heads) {
  return BackendOf(heads.q).Attend(heads.q, heads.k, heads.v, /*causal=*/true);
}

at::Tensor ProjectOutput(const stream::ModelShape& model, const at::Tensor& o,
                         const LayerTensors& w) {
  return at::linear(o.reshape({o.size(0), model.query_width()}), w.o_weight,
                    w.o_bias);
}

// Returns the same memory as a leaf of a new graph.
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

// Computes norm2 and GELU (GPT) or SwiGLU (Llama).
at::Tensor FeedForward(const stream::ModelShape& model, const at::Tensor& x,
                       const LayerTensors& w) {
  const at::Tensor h = Norm(model, x, w.norm2_weight, w.norm2_bias);
  at::Tensor up = at::linear(h, w.up_weight, w.up_bias);
  if (model.gated) {
    up = at::silu(at::linear(h, w.gate_weight)) * up;
  } else {
    up = at::gelu(up, "tanh");
  }
  return at::linear(up, w.down_weight, w.down_bias);
}

using LayerMember = at::Tensor LayerTensors::*;

// A part of the model that runs with gradients, whole or tile by tile.
class Section {
 public:
  Section() = default;
  // Adds a parameter for each tensor of `parts` that the layer has.
  Section(const LayerTensors& weights, const LayerTensors& gradients,
          std::initializer_list<std::span<const LayerMember>> parts) {
    for (const auto& members : parts) {
      for (const LayerMember member : members) {
        layer_.*member = Add(weights.*member, gradients.*member);
      }
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
constexpr LayerMember kProjectionBiases[] = {&L::q_bias, &L::k_bias,
                                             &L::v_bias};
constexpr LayerMember kOutput[] = {&L::o_weight, &L::o_bias};
constexpr LayerMember kFeedForward[] = {
    &L::norm2_weight, &L::norm2_bias,  &L::gate_weight, &L::up_weight,
    &L::up_bias,      &L::down_weight, &L::down_bias};

// The parts of a step that all methods share.
class Run {
 protected:
  Run(const BaselineOptions& options, const ModelTensors& weights,
      ModelTensors& gradients)
      : options_(options),
        model_(options.model),
        weights_(weights),
        gradients_(gradients),
        layout_(options.seq_len, options.seq_len, options.ranks()),
        runs_(RowRuns::Whole(layout_, 0)),
        rows_(layout_.local_rows(0, options.rank())),
        first_(layout_.local_offset(0, options.rank())),
        exchange_(model_.heads, model_.kv_heads, options.ranks(),
                  options.rank(), options.collectives),
        loss_sum_(at::zeros({}, On(options.device, at::kDouble))) {}

  at::Tensor Embed(const at::Tensor& tokens) const {
    at::Tensor x = at::index_select(weights_.embed, 0, tokens);
    if (weights_.positions.defined()) {
      x.add_(weights_.positions.narrow(0, first_, rows_));
    }
    return x;
  }

  // `row` is the first token's index among this rank's rows.
  void EmbedBackward(const at::Tensor& tokens, const at::Tensor& gradient,
                     int64_t row) {
    const at::Tensor gradient32 = gradient.to(at::kFloat);
    gradients_.embed.index_add_(0, tokens, gradient32);
    if (gradients_.positions.defined()) {
      gradients_.positions.narrow(0, first_ + row, tokens.size(0))
          .add_(gradient32);
    }
  }

  // Computes the loss of `hidden` [rows, hidden] and, at once, its gradients,
  // a few rows of logits at a time. The sum of losses stays on the device, so
  // the host does not wait. Returns the gradient of `hidden`.
  at::Tensor Loss(const at::Tensor& hidden, const at::Tensor& labels,
                  int64_t global_count) {
    const at::Tensor& weight = weights_.logits_weight();
    at::Tensor& weight_gradient =
        weights_.head.defined() ? gradients_.head : gradients_.embed;
    const int64_t rows = hidden.size(0);
    const int64_t step =
        stream::CutLoss(rows, stream::LossRows(model_, hidden.element_size()))
            .rows;
    at::Tensor hidden_gradient = at::empty_like(hidden);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      const at::Tensor part = hidden.narrow(0, begin, count);
      at::Tensor d_logits =
          RowsLoss(at::mm(part, weight.t()).to(at::kFloat),
                   labels.narrow(0, begin, count), global_count, loss_sum_)
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

  // Runs the final norm and the loss of some rows, forward and backward.
  // Returns the rows' gradient.
  at::Tensor Head(Section& norm, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& x,
                  const at::Tensor& labels, int64_t global_count) {
    const at::Tensor part = Leaf(x);
    at::Tensor normed;
    {
      const at::AutoGradMode with_gradients(true);
      normed = Norm(model_, part, weight, bias);
    }
    at::Tensor gradient = Loss(normed.detach(), labels, global_count);
    return norm.Backward({std::exchange(normed, {})}, {std::move(gradient)},
                         part);
  }

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const ModelTensors& weights_;
  ModelTensors& gradients_;
  const stream::ChunkLayout layout_;
  const RowRuns runs_;
  const int64_t rows_;   // of this rank
  const int64_t first_;  // the position of its first row
  HeadExchange exchange_;
  at::Tensor loss_sum_;
};

// --- keep-all and recompute --------------------------------------------------

class BaselineRun : private Run {
 public:
  BaselineRun(const BaselineOptions& options, const ModelTensors& weights,
              ModelTensors& gradients)
      : Run(options, weights, gradients) {}

  StepResult Step(const at::Tensor& tokens, const at::Tensor& labels,
                  int64_t global_count) {
    const at::AutoGradMode no_gradients(false);
    rotation_ = MakeRotation(options_, first_, rows_);
    std::vector<Graph> kept;
    at::Tensor gradient;
    {
      const at::Tensor x = LayersForward(Embed(tokens), kept);
      Section norm;
      const at::Tensor weight =
          norm.Add(weights_.final_norm_weight, gradients_.final_norm_weight);
      const at::Tensor bias =
          norm.Add(weights_.final_norm_bias, gradients_.final_norm_bias);
      gradient = Head(norm, weight, bias, x, labels, global_count);
    }
    gradient = LayersBackward(std::move(gradient), std::move(kept));
    EmbedBackward(tokens, gradient, 0);
    return ReadResult(loss_sum_, labels);
  }

 private:
  // A layer that ran with gradients.
  struct Graph {
    Section section;
    at::Tensor input, output;
  };

  at::Tensor SelfAttention(const at::Tensor& h, const LayerTensors& w) {
    HeadTensors heads = Rotate(ProjectHeads(model_, h, w), rotation_);
    const Route route{&exchange_, &runs_};
    if (!exchange_.local()) {
      const variable_list out =
          ToHeadsFunction::apply(route, heads.q, heads.k, heads.v);
      heads = {out[0], out[1], out[2]};
    }
    at::Tensor o = Attend(heads).output;
    if (!exchange_.local()) {
      o = ToTokensFunction::apply(route, o, h.size(0), model_.heads);
    }
    return ProjectOutput(model_, o, w);
  }

  at::Tensor Layer(const at::Tensor& x, const LayerTensors& w) {
    at::Tensor middle =
        x + SelfAttention(Norm(model_, x, w.norm1_weight, w.norm1_bias), w);
    return middle + FeedForward(model_, middle, w);
  }

  Graph LayerGraph(const at::Tensor& x, int64_t layer) {
    Graph graph{.section = Section(
                    weights_.layers[layer], gradients_.layers[layer],
                    {kProjections, kProjectionBiases, kOutput, kFeedForward}),
                .input = Leaf(x)};
    const at::AutoGradMode with_gradients(true);
    graph.output = Layer(graph.input, graph.section.layer());
    return graph;
  }

  // Runs all layers; `kept` gets each graph (keep-all) or input (recompute).
  at::Tensor LayersForward(at::Tensor x, std::vector<Graph>& kept) {
    for (int64_t i = 0; i < model_.layers; ++i) {
      const SegmentScope segment(options_.allocator, "layer.forward");
      if (options_.method == BaselineMethod::kKeepAll) {
        kept.push_back(LayerGraph(x, i));
        x = kept.back().output.detach();
      } else {
        kept.push_back({.input = x});
        x = Layer(x, weights_.layers[i]);
      }
    }
    return x;
  }

  at::Tensor LayersBackward(at::Tensor gradient, std::vector<Graph> kept) {
    for (int64_t i = model_.layers - 1; i >= 0; --i) {
      const SegmentScope segment(options_.allocator, "layer.backward");
      Graph graph = std::move(kept.back());
      kept.pop_back();
      if (options_.method == BaselineMethod::kRecompute) {
        graph = LayerGraph(std::exchange(graph.input, {}), i);
      }
      gradient = graph.section.Backward({std::exchange(graph.output, {})},
                                        {std::move(gradient)}, graph.input);
    }
    return gradient;
  }

  Rotation rotation_;
};

// --- alst --------------------------------------------------------------------
// Arctic Long Sequence Training (arXiv 2506.13996; DeepSpeed's
// runtime/sequence_parallel/ulysses_sp.py). Attention is whole. The rest of a
// layer runs over tiles of rows, which backward computes again with gradients
// (TiledMLP), the loss over tiles once: no [rows, ffn or vocab] tensor exists.
//
// This is leaner than the original where that costs nothing: norms, projections
// and RoPE are tiled too, gradients overwrite the tensors that they belong to,
// and q, k and v are exchanged one after the other. The peak, inside
// attention's backward, is 10 hidden states of this rank's rows without grouped
// queries: input, gradient, q, k, v, o, dO, dq, dk, dv. Tests limit it to 14.

struct Tile {
  int64_t begin, count;
  at::Tensor Of(const at::Tensor& t) const { return t.narrow(0, begin, count); }
};

// Waits, also if a step ends early, for copies that still use tensors' memory.
class SettleAtEnd {
 public:
  explicit SettleAtEnd(HostInputs& inputs) : inputs_(inputs) {}
  ~SettleAtEnd() { inputs_.Settle(); }
  SettleAtEnd(const SettleAtEnd&) = delete;

 private:
  HostInputs& inputs_;
};

class AlstRun : private Run {
 public:
  AlstRun(const BaselineOptions& options, const ModelTensors& weights,
          ModelTensors& gradients)
      : Run(options, weights, gradients), inputs_(*options.inputs) {
    // Tiles have `hidden` rows by default, as in the original, which cuts a
    // sequence into ceil(rows / hidden) shards.
    const int64_t step =
        options.tile_rows > 0 ? options.tile_rows : model_.hidden;
    for (int64_t begin = 0; begin < rows_; begin += step) {
      tiles_.push_back({begin, std::min(step, rows_ - begin)});
    }
  }

  StepResult Step(const at::Tensor& tokens, const at::Tensor& labels,
                  int64_t global_count) {
    const at::AutoGradMode no_gradients(false);
    const SettleAtEnd settle(inputs_);
    at::Tensor x = Embed(tokens);
    for (int64_t i = 0; i < model_.layers; ++i) LayerForward(x, i);
    HeadOfTiles(x, labels, global_count);
    for (int64_t i = model_.layers - 1; i >= 0; --i) LayerBackward(x, i);
    for (const Tile& tile : tiles_) {
      EmbedBackward(tile.Of(tokens), tile.Of(x), tile.begin);
    }
    return ReadResult(loss_sum_, labels);
  }

 private:
  // Returns memory for this rank's rows of all heads.
  at::Tensor EmptyTokens(HeadKind kind, const at::Tensor& like) const {
    const int64_t heads =
        kind == HeadKind::kQuery ? model_.heads : model_.kv_heads;
    return at::empty({rows_, heads, model_.head_dim()}, like.options());
  }

  // With one rank both sides of an exchange are the same tensor.
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
    at::Tensor token_side = EmptyTokens(kind, head_side);
    ThrowIfError(exchange_.ToTokens(runs_, {{kind, token_side, head_side}}));
    return token_side;
  }

  HeadTensors ProjectTile(const at::Tensor& x, const LayerTensors& w) const {
    return ProjectHeads(model_, Norm(model_, x, w.norm1_weight, w.norm1_bias),
                        w);
  }

  HeadTensors RotateTile(HeadTensors heads, const Tile& tile) const {
    return Rotate(std::move(heads),
                  MakeRotation(options_, first_ + tile.begin, tile.count));
  }

  // Projects and rotates this rank's rows tile by tile, in token layout, then
  // exchanges q, k and v whole, one after the other (Ulysses).
  HeadTensors Project(const at::Tensor& x, const LayerTensors& w) {
    HeadTensors all{EmptyTokens(HeadKind::kQuery, x),
                    EmptyTokens(HeadKind::kKeyValue, x),
                    EmptyTokens(HeadKind::kKeyValue, x)};
    for (const Tile& tile : tiles_) {
      const HeadTensors part = RotateTile(ProjectTile(tile.Of(x), w), tile);
      tile.Of(all.q).copy_(part.q);
      tile.Of(all.k).copy_(part.k);
      tile.Of(all.v).copy_(part.v);
    }
    all.q = ToHeads(HeadKind::kQuery, std::move(all.q));
    all.k = ToHeads(HeadKind::kKeyValue, std::move(all.k));
    all.v = ToHeads(HeadKind::kKeyValue, std::move(all.v));
    return all;
  }

  // Overwrites x with the layer's output.
  void LayerForward(at::Tensor& x, int64_t layer) {
    const SegmentScope segment(options_.allocator, "layer.forward");
    const LayerTensors& w = weights_.layers[layer];
    inputs_.Save(layer, x);
    at::Tensor o = Attend(Project(x, w)).output;
    o = ToTokens(HeadKind::kQuery, std::move(o));
    ThrowIfError(inputs_.AwaitSaved());
    for (const Tile& tile : tiles_) {
      at::Tensor part = tile.Of(x);
      part.add_(ProjectOutput(model_, tile.Of(o), w));
      part.add_(FeedForward(model_, part, w));
    }
  }

  // Overwrites `gradient` with that of the layer's input.
  void LayerBackward(at::Tensor& gradient, int64_t layer) {
    const SegmentScope segment(options_.allocator, "layer.backward");
    absl::StatusOr<at::Tensor> input = inputs_.Take(layer);
    ThrowIfError(input.status());
    const at::Tensor x = *std::move(input);
    HeadTensors d;
    {
      const HeadTensors heads = Project(x, weights_.layers[layer]);
      const auto [o, lse] = Attend(heads);
      // With one rank d_o is a copy: dO overwrites it, and attention's backward
      // still needs o.
      at::Tensor d_o = exchange_.local() ? o.clone() : o;
      d_o = ToTokens(HeadKind::kQuery, std::move(d_o));
      OutputBackward(x, d_o, gradient, layer);
      d_o = ToHeads(HeadKind::kQuery, std::move(d_o));
      const AttentionGradients gradients = BackendOf(o).AttendBackward(
          {heads.q, d_o, o, lse}, heads.k, heads.v, /*causal=*/true);
      d = {gradients.q, gradients.k, gradients.v};
    }
    d.q = ToTokens(HeadKind::kQuery, std::move(d.q));
    d.k = ToTokens(HeadKind::kKeyValue, std::move(d.k));
    d.v = ToTokens(HeadKind::kKeyValue, std::move(d.v));
    // The copy overlaps with the projections' backward, if there is room.
    if (layer > 0) inputs_.Fetch(layer - 1);
    ProjectBackward(x, d, gradient, layer);
  }

  // Runs backward from the layer's output to attention's output `o` (token
  // layout). Overwrites `o` with its gradient, and `gradient` with that of the
  // residual between attention and feed-forward.
  void OutputBackward(const at::Tensor& x, at::Tensor& o, at::Tensor& gradient,
                      int64_t layer) {
    const LayerTensors& w = weights_.layers[layer];
    Section output(w, gradients_.layers[layer], {kOutput});
    Section feed_forward(w, gradients_.layers[layer], {kFeedForward});
    for (const Tile& tile : tiles_) {
      at::Tensor seed = tile.Of(gradient);
      const at::Tensor part = Leaf(tile.Of(o));
      at::Tensor projected, middle, out;
      {
        const at::AutoGradMode with_gradients(true);
        projected = ProjectOutput(model_, part, output.layer());
        middle = Leaf(tile.Of(x) + projected);
        out = FeedForward(model_, middle, feed_forward.layer());
      }
      seed.add_(
          feed_forward.Backward({std::exchange(out, {})}, {seed}, middle));
      tile.Of(o).copy_(
          output.Backward({std::exchange(projected, {})}, {seed}, part));
    }
  }

  void ProjectBackward(const at::Tensor& x, const HeadTensors& d,
                       at::Tensor& gradient, int64_t layer) {
    const LayerTensors& w = weights_.layers[layer];
    const LayerTensors& g = gradients_.layers[layer];
    Section section(w, g, {kProjections});
    LayerTensors leaves = section.layer();
    std::tie(leaves.q_bias, leaves.k_bias, leaves.v_bias) =
        std::tie(w.q_bias, w.k_bias, w.v_bias);
    for (const Tile& tile : tiles_) {
      const at::Tensor part = Leaf(tile.Of(x));
      std::vector<at::Tensor> outputs;
      {
        const at::AutoGradMode with_gradients(true);
        const HeadTensors heads = ProjectTile(part, leaves);
        section.AddSummed(heads.q, g.q_bias);
        section.AddSummed(heads.k, g.k_bias);
        section.AddSummed(heads.v, g.v_bias);
        const HeadTensors out = RotateTile(heads, tile);
        outputs = {out.q, out.k, out.v};
      }
      tile.Of(gradient).add_(
          section.Backward(std::move(outputs),
                           {tile.Of(d.q), tile.Of(d.k), tile.Of(d.v)}, part));
    }
  }

  // Overwrites x with its gradient.
  void HeadOfTiles(at::Tensor& x, const at::Tensor& labels,
                   int64_t global_count) {
    Section norm;
    const at::Tensor weight =
        norm.Add(weights_.final_norm_weight, gradients_.final_norm_weight);
    const at::Tensor bias =
        norm.Add(weights_.final_norm_bias, gradients_.final_norm_bias);
    for (const Tile& tile : tiles_) {
      tile.Of(x).copy_(
          Head(norm, weight, bias, tile.Of(x), tile.Of(labels), global_count));
    }
  }

  HostInputs& inputs_;
  std::vector<Tile> tiles_;
};

// --- a step ------------------------------------------------------------------

// Runs backward on the caller's thread. Torch would run a GPU's backward on
// another thread. cuBLAS has a separate workspace there, and the ranks'
// exchange would then be issued by two threads.
class OnOneThread {
 public:
  OnOneThread() : before_(State().get_multithreading_enabled()) {
    State().set_multithreading_enabled(false);
  }
  ~OnOneThread() { State().set_multithreading_enabled(before_); }
  OnOneThread(const OnOneThread&) = delete;

 private:
  static c10::AutogradState& State() {
    return c10::AutogradState::get_tls_state();
  }
  const bool before_;
};

absl::Status Check(const BaselineOptions& options, const at::Tensor& weights,
                   const at::Tensor& tokens, const at::Tensor& labels) {
  absl::Status there = CheckBackend(options.device, weights.scalar_type(),
                                    options.model.head_dim());
  there.Update(CheckOn("weights", weights, options.device));
  there.Update(CheckOn("tokens", tokens, options.device));
  there.Update(CheckOn("labels", labels, options.device));
  if (!there.ok()) return there;
  const int64_t rows =
      stream::ChunkLayout(options.seq_len, options.seq_len, options.ranks())
          .local_rows(0, options.rank());
  if (options.method == BaselineMethod::kAlst && options.inputs == nullptr) {
    return absl::InvalidArgumentError(
        "a step of alst without host memory for its layers' inputs");
  }
  if (tokens.numel() == rows && labels.numel() == rows) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{} tokens and {} labels on rank {} of {}: a sequence of {} has {} rows "
      "there",
      tokens.numel(), labels.numel(), options.rank(), options.ranks(),
      options.seq_len, rows));
}

}  // namespace

absl::StatusOr<StepResult> BaselineStep(const BaselineOptions& options,
                                        const ModelTensors& weights,
                                        ModelTensors& gradients,
                                        const at::Tensor& tokens,
                                        const at::Tensor& labels,
                                        int64_t global_count) {
  SLUICE_RETURN_IF_ERROR(Check(options, weights.embed, tokens, labels));
  constexpr const char* kNames[] = {"keep-all", "recompute", "alst"};
  const auto what =
      fmt::format("a step of {}", kNames[static_cast<int>(options.method)]);
  const OnOneThread backward;
  return CatchStatus(what, [&]() -> absl::StatusOr<StepResult> {
    if (options.method == BaselineMethod::kAlst) {
      return AlstRun(options, weights, gradients)
          .Step(tokens, labels, global_count);
    }
    return BaselineRun(options, weights, gradients)
        .Step(tokens, labels, global_count);
  });
}

}  // namespace sluice::runtime
