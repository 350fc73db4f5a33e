#include "client/torch/baseline/baseline.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <utility>

#include "client/torch/backend/backend.h"
#include "client/torch/baseline/baseline_ops.h"
#include "client/torch/exceptions.h"
#include "client/torch/math/chunked_loss.h"
#include "client/torch/placement.h"
#include "planner/stream/loss_rows.h"

namespace sluice::runtime {
namespace {

using baseline::FeedForward;
using baseline::Leaf;
using baseline::Norm;
using baseline::Rotation;

// A layer, or the final norm, that ran with gradients: leaves and output.
struct Graph {
  at::Tensor input, output;
  std::vector<at::Tensor> parameters;

  // Runs backward and frees the graph. Adds to `gradients` (in the order of
  // `parameters`) and returns the input's gradient.
  at::Tensor Backward(at::Tensor output_gradient,
                      const std::vector<NamedTensor>& gradients) {
    std::vector<at::Tensor> inputs = {input};
    inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    std::vector<at::Tensor> outputs = {std::exchange(output, {})};
    std::vector<at::Tensor> seeds = {std::move(output_gradient)};
    std::vector<at::Tensor> found =
        torch::autograd::grad(outputs, inputs, seeds);
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i].tensor->add_(found[i + 1]);
    }
    return found[0];
  }
};

class BaselineRun {
 public:
  BaselineRun(const BaselineOptions& options, const ModelTensors& weights,
              ModelTensors& gradients)
      : options_(options),
        model_(options.model),
        weights_(weights),
        gradients_(gradients),
        ranks_(options.ranks()),
        rank_(options.rank()),
        layout_(options.seq_len, options.seq_len, ranks_),
        runs_(RowRuns::Whole(layout_, 0)),
        exchange_(model_.heads, model_.kv_heads, ranks_, rank_,
                  options.collectives),
        loss_sum_(at::zeros({}, On(options.device, at::kDouble))) {}

  StepResult Step(const at::Tensor& tokens, const at::Tensor& labels,
                  int64_t global_count) {
    const at::AutoGradMode no_gradients(false);
    if (model_.rope) {
      rotation_ = baseline::MakeRotation(layout_.local_offset(0, rank_),
                                         tokens.size(0), model_.head_dim(),
                                         model_.rope->theta, options_.device);
    }
    std::vector<Graph> kept;
    at::Tensor gradient;
    {
      const at::Tensor x = LayersForward(
          baseline::Embed(weights_, tokens, layout_.local_offset(0, rank_)),
          kept);
      gradient = Head(x, labels, global_count);
    }
    gradient = LayersBackward(std::move(gradient), std::move(kept));
    baseline::EmbedBackward(gradients_, tokens, gradient,
                            layout_.local_offset(0, rank_));
    return ReadResult(loss_sum_, labels);
  }

 private:
  at::Tensor SelfAttention(const at::Tensor& h, const LayerTensors& w) {
    const int64_t rows = h.size(0), dim = model_.head_dim();
    at::Tensor q = at::linear(h, w.q_weight, w.q_bias);
    at::Tensor k = at::linear(h, w.k_weight, w.k_bias);
    at::Tensor v = at::linear(h, w.v_weight, w.v_bias);
    q = q.view({rows, model_.heads, dim});
    k = k.view({rows, model_.kv_heads, dim});
    v = v.view({rows, model_.kv_heads, dim});
    if (rotation_.has_value()) {
      q = baseline::Rotate(q, *rotation_);
      k = baseline::Rotate(k, *rotation_);
    }
    if (!exchange_.local()) {
      std::tie(q, k, v) = baseline::ToHeads(&exchange_, &runs_, q, k, v);
    }
    at::Tensor o = BackendOf(q).Attend(q, k, v, /*causal=*/true).output;
    if (!exchange_.local()) {
      o = baseline::ToTokens(&exchange_, &runs_, o, rows, model_.heads);
    }
    return at::linear(o.reshape({rows, model_.query_width()}), w.o_weight,
                      w.o_bias);
  }

  at::Tensor Layer(const at::Tensor& x, const LayerTensors& w) {
    at::Tensor middle =
        x + SelfAttention(Norm(model_, x, w.norm1_weight, w.norm1_bias), w);
    return middle +
           FeedForward(model_,
                       Norm(model_, middle, w.norm2_weight, w.norm2_bias), w);
  }

  Graph LayerGraph(const at::Tensor& x, int64_t layer) {
    Graph graph{.input = Leaf(x)};
    LayerTensors leaves = weights_.layers[layer];
    for (const NamedTensor& leaf : NamedTensors(model_, leaves)) {
      *leaf.tensor = Leaf(*leaf.tensor);
      graph.parameters.push_back(*leaf.tensor);
    }
    const at::AutoGradMode with_gradients(true);
    graph.output = Layer(graph.input, leaves);
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
      gradient = graph.Backward(std::move(gradient),
                                NamedTensors(model_, gradients_.layers[i]));
    }
    return gradient;
  }

  // Runs the final norm and loss, both directions. Returns the last layer's
  // gradient.
  at::Tensor Head(const at::Tensor& x, const at::Tensor& labels,
                  int64_t global_count) {
    Graph norm{.input = Leaf(x),
               .parameters = {Leaf(weights_.final_norm_weight)}};
    std::vector<NamedTensor> gradients = {
        {"final_norm_weight", &gradients_.final_norm_weight}};
    at::Tensor bias;
    if (model_.biases.norms) {
      bias = Leaf(weights_.final_norm_bias);
      norm.parameters.push_back(bias);
      gradients.push_back({"final_norm_bias", &gradients_.final_norm_bias});
    }
    {
      const at::AutoGradMode with_gradients(true);
      norm.output = Norm(model_, norm.input, norm.parameters[0], bias);
    }
    at::Tensor& head_gradient =
        weights_.head.defined() ? gradients_.head : gradients_.embed;
    at::Tensor gradient = baseline::ChunkedLoss(
        norm.output.detach(), weights_.logits_weight(), head_gradient, labels,
        global_count, stream::LossRows(model_, x.element_size()), loss_sum_);
    return norm.Backward(std::move(gradient), gradients);
  }

  const BaselineOptions& options_;
  const stream::ModelShape& model_;
  const ModelTensors& weights_;
  ModelTensors& gradients_;
  const int ranks_, rank_;
  const stream::ChunkLayout layout_;
  const RowRuns runs_;
  HeadExchange exchange_;
  std::optional<Rotation> rotation_;
  at::Tensor loss_sum_;
};

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

const char* MethodName(BaselineMethod method) {
  switch (method) {
    case BaselineMethod::kKeepAll:
      return "keep-all";
    case BaselineMethod::kRecompute:
      return "recompute";
    case BaselineMethod::kAlst:
      return "alst";
  }
  return "?";
}

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
  if (absl::Status s = Check(options, weights.embed, tokens, labels); !s.ok())
    return s;
  const auto what = fmt::format("a step of {}", MethodName(options.method));
  const OnOneThread backward;
  return CatchStatus(what, [&]() -> absl::StatusOr<StepResult> {
    if (options.method == BaselineMethod::kAlst) {
      return baseline::AlstStep(options, weights, gradients, tokens, labels,
                                global_count);
    }
    return BaselineRun(options, weights, gradients)
        .Step(tokens, labels, global_count);
  });
}

}  // namespace sluice::runtime
