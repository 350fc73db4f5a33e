#include <algorithm>

#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

double Microbatches(const Request& request, const Settings& settings) {
  return std::max(1.0, double(request.global_batch) / double(settings.dp));
}

// The seconds per step of one pipeline stage, without the bubble.
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
