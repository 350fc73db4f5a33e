// FPDT as published (DeepSpeed's Ulysses-Offload): Ulysses; attention in chunks
// with k and v in host memory; checkpoints offloaded; ZeRO-3. Recomputation
// includes attention, and one stream copies in both directions.
#include <algorithm>
#include <cmath>

#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

// The traffic of a block of backward, in units of one bf16 query row of a rank
// (from fpdt_layer.py): q, o, dO and fp32 dq are fetched, and dq is sent.
constexpr double kBlockIn = 5;
constexpr double kBlockOut = 2;

// Offloads optimizer states (ZeRO-Offload) if the sharded states leave too
// little room or do not fit.
void OffloadStates(const Request& request, StepParts& parts) {
  if (parts.memory.states < kFpdtStatesOnGpu * parts.gpu_usable_bytes &&
      parts.memory.total() <= parts.gpu_usable_bytes) {
    return;
  }
  const double share = request.model.parameters() / double(request.gpus);
  parts.memory.states = share * (kWeightBytes + kDeepSpeedGradient);
  parts.host_bytes_per_node += share * kOptimizerBytes * GpusInNode(request);
  parts.optimizer_s += share * (kWeightBytes + kDeepSpeedGradient) /
                       request.hardware.host_link_bytes_per_s;
}

// Returns the heads of the rank with the most, as a multiple of the mean.
double HeadImbalance(const Request& request, double sp) {
  const double heads = double(request.model.heads);
  return std::ceil(heads / sp) * sp / heads;
}

void AddFpdtCopies(const Request& request, double sp, double chunk,
                   LayerTimes& layer) {
  const double link = request.hardware.host_link_bytes_per_s;
  const double tokens = double(request.seq_len);
  const double chunks = std::max(1.0, tokens / chunk);
  const double query_row =
      double(request.model.query_width()) / sp * kElementBytes;
  const double key_row = std::max(double(request.model.key_width()) / sp,
                                  double(request.model.head_dim())) *
                         kElementBytes;
  layer.forward.copy_in = tokens * (chunks - 1) / 2 * 2 * key_row / link;
  layer.forward.copy_out = tokens * 2 * (query_row + key_row) / link;
  layer.backward.copy_in =
      tokens * (chunks + 1) / 2 * kBlockIn * query_row / link;
  layer.backward.copy_out =
      tokens * (chunks + 1) / 2 * kBlockOut * query_row / link;
  // The fetch of the first chunk overlaps with no compute.
  const double head = chunk * 2 * key_row / link;
  for (PassTimes* pass : {&layer.forward, &layer.backward}) {
    pass->exposed_copy =
        head + Exposed(pass->copy_in + pass->copy_out, pass->compute());
  }
}

}  // namespace

StepParts FpdtStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const double sp = double(settings.sp);
  const double chunk = double(std::min(settings.chunk, request.seq_len));
  StepParts parts = StartStep(request, sp);
  LayerTimes& layer = parts.layer;
  layer.forward.attention *= HeadImbalance(request, sp);
  layer.backward.attention *= HeadImbalance(request, sp);
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  AddFpdtCopies(request, sp, chunk, layer);
  layer.recompute = layer.forward;
  AddZero(request, settings.zero, 3, kDeepSpeedGradient, parts);

  const double hidden = HiddenBytes(request, sp);
  GpuMemory& memory = parts.memory;
  memory.states = ZeroStates(request, settings.zero, kDeepSpeedGradient);
  memory.transient = kFpdtHiddens * hidden;
  memory.buffers =
      kFpdtChunkHiddens * chunk / sp * double(model.hidden) * kElementBytes;
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kFpdtMemory;
  parts.host_bytes_per_node =
      (double(model.layers) + kFpdtHostHiddens) * hidden * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kPinnedHost;
  OffloadStates(request, parts);
  return parts;
}

}  // namespace sluice::planner::train
