// ALST as published (Arctic Long Sequence Training, arXiv 2506.13996, in
// DeepSpeed and ArcticTraining): Ulysses without attention chunks; ZeRO-3 with
// the optimizer in host memory; whole layers recomputed, with their inputs
// offloaded to host memory; MLP and loss computed in tiles of the sequence.
#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

// Places ZeRO-3's shard: the optimizer in host memory; weights and gradients on
// the GPU, or in host memory too if they would leave little room (as in ALST's
// one-GPU recipe) or do not fit.
void PlaceStates(const Request& request, StepParts& parts) {
  const double share = request.model.parameters() / double(request.gpus);
  const double on_gpu = share * (kWeightBytes + kDeepSpeedGradient);
  const double link = request.hardware.host_link_bytes_per_s;
  double on_host = share * kAlstHostStates;
  const double room = parts.gpu_usable_bytes - parts.memory.total();
  if (on_gpu > std::min(room, kAlstStatesOnGpu * parts.gpu_usable_bytes)) {
    on_host += share * kWeightBytes;
    // Weights are fetched for each of three passes, overlapping with compute.
    const double seconds =
        3 * share * kWeightBytes / double(request.model.layers) / link;
    PassTimes& backward = parts.layer.backward;
    backward.copy_in += seconds;
    backward.exposed_copy += Exposed(seconds, parts.layer.total());
  } else {
    parts.memory.states = on_gpu;
  }
  parts.host_bytes_per_node += on_host * GpusInNode(request);
  // Gradients are sent to the host, and new weights are fetched.
  parts.optimizer_s += on_gpu / link;
}

}  // namespace

void AddTiledMlp(const Request& request, double gpus, LayerTimes& layer) {
  const ModelShape& model = request.model;
  const double mlp =
      model.down_weights() + double(model.hidden) * model.ffn_width();
  layer.recompute.matmul +=
      ForwardKernels(request, gpus, true).matmul * mlp / model.layer_weights();
}

void AddInputCopies(const Request& request, double gpus, LayerTimes& layer) {
  const double seconds =
      HiddenBytes(request, gpus) / request.hardware.host_link_bytes_per_s;
  layer.forward.copy_out = layer.forward.exposed_copy = seconds;
  layer.backward.copy_in = layer.backward.exposed_copy = seconds;
}

StepParts AlstStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const double sp = double(settings.sp);
  StepParts parts = StartStep(request, sp);
  LayerTimes& layer = parts.layer;
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  layer.recompute = layer.forward;
  AddTiledMlp(request, sp, layer);
  AddInputCopies(request, sp, layer);
  AddZero(request, settings.zero, 3, kDeepSpeedGradient, parts);

  const double hidden = HiddenBytes(request, sp);
  GpuMemory& memory = parts.memory;
  memory.transient =
      (sp > 1 ? kAlstHiddens : kAlstHiddens - kAlstExchange) * hidden;
  memory.logits = kAlstLogits;
  memory.buffers = kZero3Buffers;
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kAlstMemory;
  parts.host_bytes_per_node =
      double(model.layers) * hidden * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kPinnedHost;
  PlaceStates(request, parts);
  return parts;
}

}  // namespace sluice::planner::train
