#include "planner/train/layer.h"

#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/passes.h"
#include "proto/base/cgroup.h"

namespace sluice::planner::train {
namespace {

double Tokens(const Request& request) { return double(request.seq_len); }

double MatmulSeconds(const Request& request, double weights, double gpus) {
  return 2 * Tokens(request) * weights / gpus /
         (request.hardware.peak_flops * request.hardware.matmul_efficiency);
}

// The seconds of `matmuls` matrix products over the s x s attention scores.
double AttentionSeconds(const Request& request, double gpus, bool causal,
                        double matmuls, double efficiency) {
  const double s = Tokens(request);
  const double square = s * s * (causal ? 0.5 : 1.0);
  return 2 * matmuls * square * double(request.model.query_width()) / gpus /
         (request.hardware.peak_flops * efficiency);
}

double MoveSeconds(const Request& request, double gpus, double hiddens) {
  return hiddens * HiddenBytes(request, gpus) /
         request.hardware.memory_bytes_per_s;
}

}  // namespace

double HiddenBytes(const Request& request, double gpus) {
  return Tokens(request) / gpus * double(request.model.hidden) * kElementBytes;
}

PassTimes ForwardKernels(const Request& request, double gpus, bool causal) {
  const ModelShape& model = request.model;
  const double efficiency = request.hardware.AttentionForward(model.head_dim());
  return {.matmul = MatmulSeconds(request, model.layer_weights(), gpus),
          .attention = AttentionSeconds(request, gpus, causal, 2, efficiency),
          .elementwise = MoveSeconds(
              request, gpus,
              kForwardMoves + kExpertMoves * double(model.active_experts))};
}

PassTimes BackwardKernels(const Request& request, double gpus, bool causal) {
  const ModelShape& model = request.model;
  const double efficiency =
      request.hardware.AttentionBackward(model.head_dim());
  return {.matmul = 2 * MatmulSeconds(request, model.layer_weights(), gpus),
          .attention = AttentionSeconds(request, gpus, causal, 5, efficiency),
          .elementwise = MoveSeconds(
              request, gpus,
              kBackwardMoves + kExpertMoves * double(model.active_experts))};
}

PassTimes RecomputeKernels(const Request& request, double gpus,
                           double fraction) {
  const ModelShape& model = request.model;
  const double weights = model.layer_weights() - model.down_weights();
  return {.matmul = fraction * MatmulSeconds(request, weights, gpus),
          .elementwise = fraction * kRecomputedMoves *
                         MoveSeconds(request, gpus, kForwardMoves)};
}

void UnfusedKernels(const Request& request, double gpus, double fraction,
                    LayerTimes& layer) {
  const double wide = double(request.model.ffn) / double(request.model.hidden);
  const auto seconds = [&](double moves, double wide_moves) {
    return MoveSeconds(request, gpus, moves + wide_moves * wide);
  };
  layer.forward.elementwise = seconds(kPythonForwardMoves, kPythonForwardWide);
  layer.recompute.elementwise =
      fraction * seconds(kPythonRecomputedMoves, kPythonForwardWide);
  layer.backward.elementwise =
      seconds(kPythonBackwardMoves, kPythonBackwardWide);
}

void FusedKernels(const Request& request, double gpus, double fraction,
                  stream::BackwardOrder order, LayerTimes& layer) {
  const ModelShape& model = request.model;
  const auto seconds = [&](const Passes& passes) {
    return MoveSeconds(request, gpus,
                       passes.Elements(model) / double(model.hidden));
  };
  layer.forward.elementwise =
      seconds(ForwardPasses(model, /*stored=*/fraction < 1));
  layer.recompute.elementwise = fraction * seconds(RecomputedPasses(model));
  layer.backward.elementwise = seconds(BackwardPasses(model, order));
}

double QkvShare(const ModelShape& model) {
  return double(model.hidden) *
         double(model.query_width() + 2 * model.key_width()) /
         model.layer_weights();
}

double HeadSeconds(const Request& request, double gpus) {
  return 3 * MatmulSeconds(request, request.model.head_weights(), gpus);
}

double LinkBandwidth(const Hardware& hardware, double gpus) {
  return gpus <= double(hardware.gpus_per_node) ? hardware.gpu_link_bytes_per_s
                                                : hardware.network_bytes_per_s;
}

double CollectiveBandwidth(const Hardware& hardware, double gpus,
                           double groups) {
  if (gpus <= double(hardware.gpus_per_node)) {
    return hardware.gpu_link_bytes_per_s;
  }
  // Each group has at least its own GPU's network card on a node.
  return std::min(hardware.gpu_link_bytes_per_s,
                  std::max(hardware.network_bytes_per_s,
                           hardware.ring_bytes_per_s / groups));
}

double StageLayers(const Request& request, const Settings& settings) {
  return double((request.model.layers + settings.pp - 1) / settings.pp);
}

double GpusInNode(const Request& request) {
  return double(std::min(request.gpus, request.hardware.gpus_per_node));
}

double PinnableBytes(const Request& request) {
  const Bytes host(static_cast<int64_t>(request.hardware.host_memory_bytes));
  return double(Pinnable(host).count());
}

double Exposed(double link_s, double hidden_under_s) {
  return std::max(0.0, link_s - hidden_under_s);
}

double OptimizerSeconds(const Request& request, double parameters,
                        double shards) {
  // Norm of the gradients, reads and writes of states, writes of weights.
  const double bytes =
      parameters * (2 * kWeightBytes + 2 * kOptimizerBytes / shards);
  return bytes / request.hardware.memory_bytes_per_s;
}

}  // namespace sluice::planner::train
