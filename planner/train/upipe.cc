// UPipe as published (Untied Ulysses, arXiv 2602.21196, in TorchTitan): Ulysses
// over sp GPUs in stages of a few heads, so that q, k, v and gradients of only
// these heads exist at once; a ring over cp such groups; FSDP2 with its states
// on the GPU; whole layers recomputed, with their inputs offloaded to host
// memory; MLP, norms and loss computed in tiles.
#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

// Adds the network times of Ulysses in stages, and of the ring. In forward
// every stage sends its q around the ring. In backward it sends k and v, and
// fp32 dk and dv, which are sent once more after the last compute. Returns the
// seconds of a layer's compute during which the ring uses the link.
double AddStages(const Request& request, double sp, double cp,
                 LayerTimes& layer) {
  Request group = request;  // a request with the tokens of one group
  group.seq_len = request.seq_len / int64_t(cp);
  const double exchange = ExchangeSeconds(group, sp);
  const double queries =
      double(group.seq_len) * double(request.model.query_width()) / sp *
      kElementBytes / LinkBandwidth(request.hardware, sp * cp);
  layer.forward.network =
      exchange + Exposed((cp - 1) * queries, layer.forward.attention);
  // Backward exchanges q, k, v (again), o, dO, and, the other way, dq, dk, dv.
  layer.backward.network =
      2 * exchange + (cp > 1 ? 4 * queries : 0) +
      Exposed((cp - 1) * 6 * queries, layer.backward.attention);
  return 2 * std::min((cp - 1) * queries, layer.forward.attention) +
         std::min((cp - 1) * 6 * queries, layer.backward.attention);
}

}  // namespace

StepParts UpipeStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const double sp = double(settings.sp), cp = double(settings.cp);
  const double gpus = sp * cp;
  StepParts parts = StartStep(request, gpus);
  LayerTimes& layer = parts.layer;
  // Backward repeats the products of q, k and v from norm1's output.
  layer.backward.matmul += layer.forward.matmul * QkvShare(model);
  const double ring_s = AddStages(request, sp, cp, layer);
  layer.recompute = layer.forward;
  AddTiledMlp(request, gpus, layer);
  AddInputCopies(request, gpus, layer);
  AddZero(request, settings.zero, 2, kMegatronGradient, parts,
          ring_s + layer.recompute.network + layer.forward.exposed_copy +
              layer.backward.exposed_copy);
  parts.swapped_layers = double(model.layers) - 1;
  const double share = model.parameters() / double(request.gpus);

  const double hidden = HiddenBytes(request, gpus);
  const double queries =
      hidden * double(model.query_width()) / double(model.hidden);
  const double stage = kUpipeStage + (cp > 1 ? kUpipeRing : 0);
  GpuMemory& memory = parts.memory;
  memory.states = share * kFsdpStates;
  memory.transient =
      kUpipeHiddens * hidden +
      queries * (kUpipeQueries + stage * sp / double(model.heads));
  memory.buffers =
      model.stored_layer_weights() * (2 * kWeightBytes + kMegatronGradient) +
      (model.tied ? 1 : 2) * model.head_weights() * kWeightBytes +
      kUpipeRotary * double(request.seq_len * model.head_dim()) / 2;
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kFsdpMemory;
  parts.host_bytes_per_node =
      (double(model.layers) - 1) * hidden * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kPinnedHost;
  return parts;
}

}  // namespace sluice::planner::train
