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

// Returns the seconds of `matmuls` matrix products over all attention scores.
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

double Microbatches(const Request& request, const Settings& settings) {
  return std::max(1.0, double(request.global_batch) / double(settings.dp));
}

// Returns the seconds per step of one pipeline stage, without the bubble.
Breakdown WorkOfStage(const Request& request, const Settings& settings,
                      const StepParts& parts) {
  const double sequences = Microbatches(request, settings);
  const double stage = StageLayers(request, settings);
  const double layers = sequences * stage;
  const double swapped =
      sequences * parts.swapped_layers * stage / double(request.model.layers);
  const LayerTimes& layer = parts.layer;
  Breakdown work;
  work.attention =
      layers * (layer.forward.attention + layer.backward.attention);
  work.matmul =
      layers * (layer.forward.matmul + layer.backward.matmul) +
      sequences * HeadSeconds(request, double(settings.sequence_gpus()));
  work.elementwise =
      layers * (layer.forward.elementwise + layer.backward.elementwise);
  work.recompute = layers * layer.recompute.compute();
  work.exposed_network =
      layers * (layer.forward.network + layer.recompute.network +
                layer.backward.network);
  work.exposed_copy =
      swapped * (layer.forward.exposed_copy + layer.recompute.exposed_copy +
                 layer.backward.exposed_copy);
  work.reorganisation = sequences * parts.reorganisation_s;
  return work;
}

Reason WhatStops(const Estimate& e) {
  if (e.gpu_peak_bytes > e.gpu_usable_bytes) return Reason::kGpuMemory;
  return e.host_bytes_per_node > e.host_usable_bytes ? Reason::kHostMemory
                                                     : Reason::kOk;
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

double Breakdown::total() const {
  return attention + matmul + elementwise + recompute + exposed_copy +
         exposed_network + gradient_sync + reorganisation + pipeline_bubble +
         optimizer;
}

double CountedFlops(const ModelShape& model, double seq_len) {
  const double weights =
      double(model.layers) * model.layer_weights() + model.head_weights();
  return 6 * seq_len * weights + 6 * double(model.layers) *
                                     double(model.query_width()) * seq_len *
                                     seq_len;
}

std::string_view ReasonName(Reason reason) {
  constexpr std::string_view kNames[] = {"ok", "gpu_memory", "host_memory",
                                         "heads", "step_time"};
  return kNames[size_t(reason)];
}

StepParts StartStep(const Request& request, double gpus, bool causal) {
  StepParts parts;
  parts.layer.forward = ForwardKernels(request, gpus, causal);
  parts.layer.backward = BackwardKernels(request, gpus, causal);
  parts.swapped_layers = double(request.model.layers);
  parts.optimizer_s = OptimizerSeconds(
      request, request.model.parameters() / double(request.gpus), 1);
  return parts;
}

Estimate Assemble(const Request& request, const Settings& settings,
                  const StepParts& parts) {
  Estimate result;
  result.settings = settings;
  result.layer = parts.layer;
  result.memory = parts.memory;
  result.reorganisation_unknown = parts.reorganisation_unknown;
  result.gpu_peak_bytes = parts.memory.total();
  result.gpu_usable_bytes = parts.gpu_usable_bytes;
  result.host_bytes_per_node = parts.host_bytes_per_node;
  result.host_usable_bytes = parts.host_usable_bytes;
  result.reason = WhatStops(result);
  result.fits = result.reason == Reason::kOk;

  Breakdown& work = result.breakdown;
  work = WorkOfStage(request, settings, parts);
  work.pipeline_bubble =
      work.total() * double(settings.pp - 1) /
      (Microbatches(request, settings) * double(settings.interleave));
  work.gradient_sync = parts.gradient_sync_s;
  work.optimizer = parts.optimizer_s;
  work.exposed_copy += parts.states_copy_s;

  result.step_s = work.total();
  const double tokens = double(request.global_batch) * double(request.seq_len);
  result.tokens_per_gpu_per_s = tokens / result.step_s / double(request.gpus);
  result.mfu =
      double(request.global_batch) *
      CountedFlops(request.model, double(request.seq_len)) /
      (result.step_s * request.hardware.peak_flops * double(request.gpus));
  return result;
}

StepParts SluiceStep(const Request& request, const Settings& settings) {
  return settings.engine == Engine::kPython ? PythonStep(request, settings)
                                            : TrainerStep(request, settings);
}

Estimate EstimateStep(const Request& request, const Settings& settings) {
  return Assemble(request, settings,
                  TraitsOf(request.method).step(request, settings));
}

}  // namespace sluice::planner::train
