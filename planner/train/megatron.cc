// Megatron-LM (tensor with sequence parallelism, context parallelism,
// pipelines, expert parallelism, caching allocator); MEMO on top of it
// (token-wise recomputation and swapping, planned memory); and ring: FSDP2 with
// tensor and ring context parallelism, as in TorchTitan (arXiv 2410.06511).
#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

struct ParallelGroup {
  ParallelGroup(const Request& request, const Settings& settings)
      : tp(double(settings.tp)),
        cp(double(settings.cp)),
        dp(double(settings.dp)),
        pp(double(settings.pp)),
        gpus(tp * cp),
        hidden(HiddenBytes(request, gpus)) {}
  double tp, cp, dp, pp;
  double gpus;    // GPUs that share a sequence in a stage
  double hidden;  // bytes of one local hidden state
};

// Returns the seconds to gather or scatter a context rank's hidden states.
double CollectiveSeconds(const Request& request, const ParallelGroup& group) {
  if (group.tp == 1) return 0;
  const double bytes = HiddenBytes(request, group.cp);
  return bytes * (group.tp - 1) / group.tp /
         CollectiveBandwidth(request.hardware, group.tp);
}

// Returns the seconds in which a rank gets k and v of all others in the ring.
double RingSeconds(const Request& request, const ParallelGroup& group) {
  const double heads_share =
      std::max(double(request.model.key_width()) / group.tp,
               double(request.model.head_dim()));
  const double bytes = double(request.seq_len) / group.cp * 2 * heads_share *
                       kElementBytes * (group.cp - 1);
  return bytes / LinkBandwidth(request.hardware, group.gpus);
}

void AddNetwork(const Request& request, const ParallelGroup& group,
                LayerTimes& layer) {
  const double collective = CollectiveSeconds(request, group);
  const double ring = RingSeconds(request, group);
  layer.forward.network =
      kForwardCollectives * collective + Exposed(ring, layer.forward.attention);
  // Backward sends k and v a second time, and their gradients.
  layer.backward.network = kBackwardCollectives * collective +
                           Exposed(2 * ring, layer.backward.attention);
}

// Returns the parameters per GPU of the largest stage, assumed to have
// embedding and head.
double ParametersPerGpu(const Request& request, const Settings& settings,
                        int64_t ep) {
  const ModelShape& model = request.model;
  const double layer = model.stored_layer_weights();
  const double rest = model.parameters() - double(model.layers) * layer;
  const double elsewhere = model.expert_weights() * (1 - 1 / double(ep));
  const double stage = StageLayers(request, settings) * (layer - elsewhere);
  return (stage + rest) / double(settings.tp);
}

double MegatronStates(const Request& request, const ParallelGroup& group,
                      const Settings& settings) {
  const double shards = group.dp * group.cp;
  const auto shared_from = [&](int stage) {
    return settings.zero >= stage ? shards : 1;
  };
  // Spreading experts does not change the optimizer states of a GPU: it has
  // fewer experts, but their states are divided into fewer shards.
  const double all = ParametersPerGpu(request, settings, 1);
  if (request.method == Method::kRing) return all * kFsdpStates / shards;
  return ParametersPerGpu(request, settings, settings.ep) *
             (kWeightBytes / shared_from(3) +
              kMegatronGradient / shared_from(2)) +
         all * kOptimizerBytes / shared_from(1);
}

// Returns the seconds of a layer's compute during which the network is idle.
// The ring overlaps with attention.
double ComputeBesideRing(const Request& request, const ParallelGroup& group,
                         const LayerTimes& layer) {
  const double ring = RingSeconds(request, group);
  const auto beside = [](const PassTimes& pass, double link) {
    return pass.compute() - std::min(pass.attention, link);
  };
  return beside(layer.forward, ring) + beside(layer.recompute, ring) +
         beside(layer.backward, 2 * ring);
}

// Adds the optimizer and ZeRO's traffic among the shards, as AddZero does. Call
// it after the layer's passes are set.
void AddStep(const Request& request, const ParallelGroup& group,
             const Settings& settings, int weight_passes, StepParts& parts) {
  const double shards = group.dp * group.cp;
  const double parameters = ParametersPerGpu(request, settings, settings.ep);
  const double sharded = settings.zero >= 3 ? shards : 1;
  parts.optimizer_s =
      OptimizerSeconds(request, parameters / sharded, shards / sharded);
  if (shards == 1) return;
  const auto seconds = [&](double bytes_per_parameter) {
    return parameters * bytes_per_parameter * (shards - 1) / shards /
           CollectiveBandwidth(request.hardware, group.gpus * group.dp,
                               group.tp);
  };
  double a_step = settings.zero >= 3 ? 0 : kWeightBytes;
  double a_sequence = settings.zero >= 3 ? weight_passes * kWeightBytes : 0;
  (settings.zero >= 2 ? a_sequence : a_step) += kMegatronGradient;
  parts.gradient_sync_s = seconds(a_step);
  parts.layer.backward.network +=
      Exposed(seconds(a_sequence) / StageLayers(request, settings),
              ComputeBesideRing(request, group, parts.layer));
}

// ZeRO-3 gathers the weights of two layers and the gradients of one.
double GatheredBytes(const Request& request, const ParallelGroup& group,
                     const Settings& settings) {
  if (settings.zero < 3 || group.dp * group.cp == 1) return 0;
  return request.model.stored_layer_weights() / group.tp *
         (2 * kWeightBytes + kMegatronGradient);
}

double TransientHiddens(const ParallelGroup& group, bool planned) {
  double hiddens = kBackwardHiddens;
  if (group.tp > 1) {
    hiddens += (planned ? kGatheredPlanned : kGatheredCached) * group.tp;
  }
  if (group.cp > 1) hiddens += planned ? kRingPlanned : kRingCached;
  return hiddens;
}

double Logits(const Request& request, const ParallelGroup& group) {
  const bool fsdp = request.method == Method::kRing;  // torch's own loss
  return double(request.seq_len) / group.gpus * double(request.model.vocab) *
         (fsdp ? kDeepSpeedLogit : kMegatronLogit);
}

// `transient` and `logits` are alive in different phases. They share memory
// under a plan, and in a caching allocator with few block sizes. Context
// parallelism has too many sizes for that (inferred: see README.md).
void AddTransients(bool share, double transient, double logits,
                   GpuMemory& memory) {
  if (!share || transient > logits) memory.transient = transient;
  if (!share || transient <= logits) memory.logits = logits;
}

// Adds the time of reorganisation on machines where it was measured. On other
// machines the estimate says that this time is not included.
void AddReorganisation(const Request& request, const Settings& settings,
                       double skeletal, StepParts& parts) {
  const double states = parts.memory.states;
  const double free = request.hardware.memory_bytes - states;
  const double used = parts.memory.total() - states;
  const double rate =
      std::clamp((used / std::max(free, 1.0) - kReorganisationStart) /
                     (kReorganisationFull - kReorganisationStart),
                 0.0, 1.0);
  const double seconds = request.hardware.reorganisation_s_per_byte;
  parts.reorganisation_s =
      rate * seconds * skeletal * StageLayers(request, settings);
  parts.reorganisation_unknown = rate > 0 && seconds == 0;
}

// Returns the elements per token that a layer keeps for backward.
double KeptElements(const Request& request, Recompute recompute) {
  const ModelShape& model = request.model;
  const double hidden = double(model.hidden);
  const double projections = double(model.query_width()) +
                             2 * double(model.key_width()) + 2 * hidden +
                             model.ffn_width();
  if (recompute == Recompute::kFull) return hidden;
  if (recompute == Recompute::kNone) return model.skeletal_elements();
  // TorchTitan keeps the outputs of attention and of every second matmul.
  if (request.method == Method::kRing) {
    return hidden + double(model.query_width()) + projections / 2;
  }
  // Megatron drops both norms' outputs and the FFN's activation.
  return model.skeletal_elements() - 2 * hidden - model.active_ffn();
}

PassTimes Recomputation(const Request& request, const ParallelGroup& group,
                        Recompute recompute, const PassTimes& forward) {
  if (recompute == Recompute::kFull) return forward;
  PassTimes times;
  if (recompute == Recompute::kNone) return times;
  times.elementwise = kRecomputedMoves * forward.elementwise;
  if (request.method == Method::kRing) {
    times.matmul = forward.matmul / 2;
    times.network = kForwardCollectives / 2 * CollectiveSeconds(request, group);
  }
  return times;
}

// Returns the seconds in which one pass sends the tokens of every layer to the
// experts' ranks and back.
double ExpertSeconds(const Request& request, const ParallelGroup& group,
                     double ep) {
  if (ep == 1) return 0;
  return 2 * group.hidden * double(request.model.active_experts) * (ep - 1) /
         ep / LinkBandwidth(request.hardware, ep * group.tp);
}

}  // namespace

StepParts MegatronStep(const Request& request, const Settings& settings) {
  const ParallelGroup group(request, settings);
  const bool fsdp = request.method == Method::kRing;
  const bool planned = settings.memory_plan || fsdp;
  const Recompute recompute = settings.recompute;
  StepParts parts = StartStep(request, group.gpus);
  LayerTimes& layer = parts.layer;
  for (PassTimes* pass : {&layer.forward, &layer.backward}) {
    if (fsdp) pass->attention /= request.hardware.torch_attention;
  }
  AddNetwork(request, group, layer);
  const double experts = ExpertSeconds(request, group, double(settings.ep));
  layer.forward.network += experts;
  layer.backward.network += experts;
  layer.recompute = Recomputation(request, group, recompute, layer.forward);
  AddStep(request, group, settings, fsdp ? 2 : 3, parts);

  // Interleaved stages have more sequences in flight (arXiv 2205.05198, 4.2.3).
  const double interleave = double(settings.interleave);
  const double in_flight =
      std::min(group.pp, double(request.global_batch) / group.dp) *
      (interleave > 1 ? 1 + (group.pp - 1) / (group.pp * interleave) : 1);
  const double token = double(request.seq_len) / group.gpus * kElementBytes;
  const double skeletal = double(request.seq_len) / group.gpus *
                          request.model.skeletal_elements() * kElementBytes;
  const double kept = token * KeptElements(request, recompute);
  GpuMemory& memory = parts.memory;
  memory.states = MegatronStates(request, group, settings);
  memory.buffers = GatheredBytes(request, group, settings);
  memory.skeletal = StageLayers(request, settings) * in_flight * kept;
  const double transient = skeletal -
                           (recompute == Recompute::kFull ? 0 : kept) +
                           TransientHiddens(group, planned) * group.hidden;
  double logits = Logits(request, group);
  if (planned) logits += kHeadHiddens * group.hidden;
  AddTransients(planned || group.cp == 1, transient, logits, memory);
  parts.gpu_usable_bytes =
      request.hardware.memory_bytes * (fsdp      ? kFsdpMemory
                                       : planned ? kPlannedMemory
                                                 : kCachedMemory);
  if (!planned) AddReorganisation(request, settings, skeletal, parts);
  return parts;
}

StepParts MemoStep(const Request& request, const Settings& settings) {
  const ParallelGroup group(request, settings);
  const ModelShape& model = request.model;
  const double alpha = settings.alpha;
  StepParts parts = StartStep(request, group.gpus);
  LayerTimes& layer = parts.layer;
  AddNetwork(request, group, layer);
  layer.recompute = RecomputeKernels(request, group.gpus, 1 - alpha);
  layer.recompute.network =
      (1 - alpha) * kRecomputeCollectives * CollectiveSeconds(request, group);
  AddStep(request, group, settings, 2, parts);

  // Input and attention output are swapped whole, the other tensors at alpha.
  const double token = double(request.seq_len) / group.gpus * kElementBytes;
  const double always =
      token * (double(model.hidden) + double(model.query_width()));
  const double others = token * model.skeletal_others();
  const double moved = always + alpha * others;
  const double link = request.hardware.host_link_bytes_per_s;
  layer.forward.copy_out = layer.backward.copy_in = moved / link;
  layer.forward.exposed_copy = Exposed(moved / link, layer.forward.total());
  layer.backward.exposed_copy =
      Exposed(moved / link, layer.recompute.total() + layer.backward.total());
  parts.swapped_layers = std::max<double>(0, double(model.layers) - 2);

  // Two rounding buffers; at alpha 0 the other tensors need only one.
  GpuMemory& memory = parts.memory;
  memory.states = MegatronStates(request, group, settings);
  memory.buffers = GatheredBytes(request, group, settings);
  memory.skeletal = 2 * always + (alpha > 0 ? 2 : 1) * others;
  const double transient =
      token * model.ffn_width() + TransientHiddens(group, true) * group.hidden;
  const double logits = Logits(request, group) + kHeadHiddens * group.hidden;
  AddTransients(true, transient, logits, memory);
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kPlannedMemory;
  parts.host_bytes_per_node =
      parts.swapped_layers * StageLayers(request, settings) /
      double(model.layers) * moved * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kMemoHost;
  return parts;
}

}  // namespace sluice::planner::train
