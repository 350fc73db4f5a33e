// DeepSpeed-Ulysses with ZeRO and full recomputation.
#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {

double AllToAllSeconds(const Hardware& hardware, double bytes, double ranks) {
  const double node = double(hardware.gpus_per_node);
  if (ranks <= node) {
    return bytes * (ranks - 1) / ranks / hardware.gpu_link_bytes_per_s;
  }
  return bytes * (ranks - node) / ranks / hardware.network_bytes_per_s;
}

double ExchangeSeconds(const Request& request, double sp) {
  if (sp == 1) return 0;
  const ModelShape& model = request.model;
  // A kv head is sent once per rank that uses it.
  const double key =
      std::max(double(model.key_width()), sp * double(model.head_dim()));
  const double bytes = double(request.seq_len) / sp *
                       (2 * double(model.query_width()) +
                        2 * std::min(key, double(model.query_width()))) *
                       kElementBytes;
  return AllToAllSeconds(request.hardware, bytes, sp);
}

double ZeroStates(const Request& request, int zero, double gradient_bytes) {
  const double gpus = double(request.gpus);
  const double weight = zero >= 3 ? gpus : 1;
  const double gradient = zero >= 2 ? gpus : 1;
  const double optimizer = zero >= 1 ? gpus : 1;
  return request.model.parameters() *
         (kWeightBytes / weight + gradient_bytes / gradient +
          kOptimizerBytes / optimizer);
}

void AddZero(const Request& request, int zero, int weight_passes,
             double gradient_bytes, StepParts& parts, double busy_s) {
  const double gpus = double(request.gpus);
  const auto seconds = [&](double bytes_per_parameter) {
    return request.model.parameters() * bytes_per_parameter * (gpus - 1) /
           gpus / CollectiveBandwidth(request.hardware, gpus);
  };
  double a_step = zero >= 3 ? 0 : kWeightBytes;
  double a_sequence = zero >= 3 ? weight_passes * kWeightBytes : 0;
  (zero >= 2 ? a_sequence : a_step) += gradient_bytes;
  parts.gradient_sync_s = seconds(a_step);
  const double a_layer = seconds(a_sequence) / double(request.model.layers);
  parts.layer.backward.network +=
      Exposed(a_layer, parts.layer.total() - parts.layer.forward.network -
                           parts.layer.backward.network - busy_s);
}

StepParts UlyssesStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const double sp = double(settings.sp);
  // Ulysses' attention computes the whole square (inferred: see README.md).
  StepParts parts = StartStep(request, sp, /*causal=*/false);
  LayerTimes& layer = parts.layer;
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  layer.recompute = layer.forward;
  AddZero(request, settings.zero, 3, kDeepSpeedGradient, parts);

  const double hidden = HiddenBytes(request, sp);
  const double logits =
      double(request.seq_len) / sp * double(model.vocab) * kDeepSpeedLogit;
  const double transient = kUlyssesHiddens * hidden;
  GpuMemory& memory = parts.memory;
  memory.states = ZeroStates(request, settings.zero, kDeepSpeedGradient);
  memory.skeletal = double(model.layers) * hidden;
  (logits > transient ? memory.logits : memory.transient) =
      std::max(logits, transient);
  memory.buffers = settings.zero >= 3 ? kZero3Buffers : 0;
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kCachedMemory;
  return parts;
}

}  // namespace sluice::planner::train
