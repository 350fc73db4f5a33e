// This project's runtime: a layer chunk by chunk, k and v in host memory,
// (o, lse) kept there too, alpha of the rest; nothing in HBM grows with the
// sequence but ids and labels. Bytes are those of planner/stream, by which the
// runtime itself allocates and copies; only the times are modelled here.

#include <algorithm>

#include "planner/stream/fractions.h"
#include "planner/stream/host_stage.h"
#include "planner/stream/layer_time.h"
#include "planner/stream/schedule.h"
#include "planner/stream/states.h"
#include "planner/stream/transients.h"
#include "planner/train/constants.h"
#include "planner/train/layer.h"
#include "planner/train/sequence_parallel.h"
#include "proto/base/cgroup.h"

namespace sluice::planner::train {
namespace {

using stream::Class;
using stream::LayerTraffic;
using stream::StreamShape;
using stream::Traffic;

constexpr double kIdBytes = 16;  // id and label, int64

// Ranks that do not divide the heads never run; what is said of them is said
// of a model with the next number of heads that they divide.
stream::ModelShape DividedBy(stream::ModelShape model, int64_t ranks) {
  if (model.heads % ranks == 0) return model;
  model.head_size = model.head_dim();
  model.heads = (model.heads + ranks - 1) / ranks * ranks;
  model.kv_heads = model.heads;
  return model;
}

// Backward's blocks in the order that moves less: what the run chooses, too,
// where copies show (planner/stream/settings.h).
stream::StreamOptions StreamOptionsOf(const Request& request,
                                      const Settings& settings) {
  stream::StreamOptions options = {
      .model = DividedBy(request.model, settings.sp),
      .layout =
          stream::ChunkLayout(request.seq_len, settings.chunk, settings.sp),
      .dtype = stream::Dtype::kBf16,
      .alpha = settings.alpha,
      .round_output = true,
      .rerun_chunks = settings.rerun_chunks,
      .rerun_layers = settings.rerun_layers};
  options.fractions = stream::KeepLastChunks({}, settings.kept);
  if (settings.resident) {
    options.fractions = stream::KeepEverything(options.model);
    return options;
  }
  const auto moved = [&options](stream::BackwardOrder order) {
    options.order = order;
    const Traffic blocks = stream::CountTraffic(StreamShape(options)).blocks;
    return blocks.in + blocks.out;
  };
  const int64_t keys_outer = moved(stream::BackwardOrder::kKeysOuter);
  if (moved(stream::BackwardOrder::kQueriesOuter) >= keys_outer) {
    options.order = stream::BackwardOrder::kKeysOuter;
  }
  return options;
}

struct States {
  double hbm = 0, host = 0;  // bytes of the fullest rank
};

// What the run allocates, to the byte; with ZeRO 2 and 3, which sluice-train
// does not do, what FSDP2 leaves of it.
States StatesOf(const Request& request, const Settings& settings) {
  const bool in_host = settings.states == stream::StatePlace::kHost;
  if (settings.zero >= 2) {
    States states{ZeroStates(request, settings.zero, kMegatronGradient), 0};
    if (!in_host) return states;
    states.host =
        request.model.parameters() * kOptimizerBytes / double(request.gpus);
    states.hbm +=
        double(stream::kStateSlots) * double(stream::kMostUnitBytes.count()) -
        states.host;
    return states;
  }
  const int shards = settings.zero == 1 ? static_cast<int>(request.gpus) : 1;
  const stream::StateBytes bytes =
      stream::CountStates(request.model, stream::Dtype::kBf16, shards,
                          /*rank=*/0, settings.states);
  return {double(bytes.hbm().count()), double(bytes.host.count())};
}

// States in host memory come and go once a step, both ways at once, while the
// first sequence's forward computes and its own copies leave the link free;
// those of the embedding before anything is computed.
double ExposedStates(const Request& request, double bytes,
                     const LayerTimes& layer) {
  if (bytes == 0) return 0;
  const ModelShape& model = request.model;
  const double seconds = bytes / request.hardware.host_link_bytes_per_s;
  const PassTimes& up = layer.forward;
  const double window = double(model.layers) *
                        Exposed(up.total(), std::max(up.copy_in, up.copy_out));
  const double first = double(stream::PartSizes(model).front()) /
                       double(model.trained_parameters());
  return first * seconds + Exposed((1 - first) * seconds, window);
}

// The run's own kernels where they are not those of all methods: they are not
// fused, and gradients of weights are fp32 products (client/torch/math).
void AsTheRunComputes(const Request& request, double gpus, double dropped,
                      LayerTimes& layer) {
  const Hardware& hardware = request.hardware;
  const double wide = double(request.model.ffn) / double(request.model.hidden);
  const double hidden =
      HiddenBytes(request, gpus) / hardware.memory_bytes_per_s;
  layer.forward.elementwise =
      (kSluiceForwardMoves + kSluiceForwardWide * wide) * hidden;
  layer.recompute.elementwise =
      dropped * (kSluiceRecomputedMoves + kSluiceForwardWide * wide) * hidden;
  layer.backward.elementwise =
      (kSluiceBackwardMoves + kSluiceBackwardWide * wide) * hidden;
  layer.backward.matmul *=
      0.5 + 0.5 * hardware.matmul_efficiency / hardware.matmul_fp32_efficiency;
}

// Backward's kernels between hidden states and heads: of its matmuls those of
// q, k and v, and as much of the rest.
double ProjectionsShare(const ModelShape& model) {
  const double weights = double(model.hidden) *
                         double(model.query_width() + 2 * model.key_width());
  return weights / model.layer_weights();
}

// The layer's compute as the streamed step has it in pieces.
stream::LayerCompute ComputeOf(const ModelShape& model, double chunks,
                               const LayerTimes& layer) {
  const PassTimes& up = layer.forward;
  const PassTimes& back = layer.backward;
  const double keys = up.attention * (1 - 1 / chunks);
  const double local = back.matmul + back.elementwise;
  const double projections = ProjectionsShare(model) * local;
  return {.keys = keys,
          .forward = up.compute() + up.network - keys,
          .tokens =
              layer.recompute.total() + local - projections + back.network / 2,
          .blocks = back.attention,
          .projections = projections + back.network / 2};
}

// What copies add: to layers, and to embedding and loss, of which each layer
// is given its part.
void AddStreamCopies(const Request& request, const StreamShape& shape,
                     const Settings& settings, LayerTimes& layer) {
  const double link = request.hardware.host_link_bytes_per_s;
  const stream::LinkSpeeds links = {link, link};
  const LayerTraffic traffic = stream::CountTraffic(shape);
  PassTimes& up = layer.forward;
  PassTimes& back = layer.backward;
  up.copy_in = double(traffic.forward.in) / link;
  up.copy_out = double(traffic.forward.out) / link;
  back.copy_in = double(traffic.tokens.in + traffic.blocks.in) / link;
  back.copy_out = double(traffic.tokens.out + traffic.blocks.out) / link;
  const stream::LayerCompute compute =
      ComputeOf(request.model, double(shape.chunks()), layer);
  const stream::LayerSeconds seconds = stream::TimeLayer(shape, compute, links);
  const stream::EndsCompute ends = {
      .loss = HeadSeconds(request, double(settings.sp))};
  const double beside_layers =
      stream::TimeEnds(shape, ends, links) - ends.total();
  up.exposed_copy = Exposed(seconds.forward, compute.keys + compute.forward) +
                    beside_layers / double(request.model.layers);
  back.exposed_copy =
      Exposed(seconds.tokens, compute.tokens) +
      Exposed(seconds.attention, compute.blocks + compute.projections);
}

// What backward runs again of a layer's forward (`tokens`: their part), the
// mean of all layers: attention of the first chunks among themselves (causal),
// and of their tokens all that is linear in them, up to attention in a group's
// last layer.
void AddRerun(const Request& request, double tokens,
              const stream::StreamOptions& options, const StreamShape& shape,
              LayerTimes& layer) {
  if (shape.layers_rerun() == 0) return;
  const double all = double(shape.layers);
  const double layers = double(shape.layers_rerun()) / all;
  const double whole = layers - layers / double(shape.rerun_layers);
  const double projected = ProjectionsShare(request.model);
  const double local = tokens * (layers * projected + whole * (1 - projected));
  const double q = double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  const PassTimes& up = layer.forward;
  const PassTimes again = {
      .matmul = local * up.matmul,
      .attention = tokens * tokens * layers * up.attention,
      .elementwise = local * up.elementwise,
      .network =
          tokens * up.network * (layers * (q + kv) + whole * q) / (2 * q + kv)};
  const double link = request.hardware.host_link_bytes_per_s;
  const double keys = again.attention * (1 - 1 / double(shape.rerun_chunks));
  const double forward = again.compute() + again.network - keys;
  layer.recompute.exposed_copy += Exposed(
      stream::TimeRerun(options, keys * all, forward * all, {link, link}) / all,
      keys + forward);
  layer.recompute.matmul += again.matmul;
  layer.recompute.attention += again.attention;
  layer.recompute.elementwise += again.elementwise;
  layer.recompute.network += again.network;
}

// q, k, v of dropped rows are exchanged again, of the q, k, v and o of all.
double RecomputedNetwork(const StreamShape& shape, double dropped,
                         double network) {
  const double q = double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  return dropped * network * (q + kv) / (2 * q + kv);
}

}  // namespace

Settings PlaceChunks(const Request& request, Settings settings, bool keep) {
  if (settings.resident || settings.zero >= 2) return settings;
  settings.kept = 0;
  settings.rerun_chunks = 0;
  const StepParts swapped = SluiceStep(request, settings);
  const double left = swapped.gpu_usable_bytes - swapped.memory.total();
  const double states = StatesOf(request, settings).host;
  const auto bytes_of = [&](const Settings& placed) {
    const StreamShape shape(StreamOptionsOf(request, placed));
    const Bytes host(shape.host_bytes());
    return std::pair(
        double(shape.resident_bytes()),
        (double((host + stream::kHostStageBytes).count()) + states) *
            GpusInNode(request));
  };
  settings.kept = 1;
  const double all = bytes_of(settings).first;
  settings.kept = keep ? std::clamp(left / all, 0.0, 1.0) : 0;
  const double host = swapped.host_usable_bytes;
  if (settings.alpha > 0 || bytes_of(settings).second <= host) return settings;
  int64_t too_few = 0;
  int64_t enough = (request.seq_len - 1) / settings.chunk + 1;
  while (enough - too_few > 1) {
    settings.rerun_chunks = (enough + too_few) / 2;
    const bool fits = bytes_of(settings).second <= host;
    (fits ? enough : too_few) = settings.rerun_chunks;
  }
  settings.rerun_chunks = enough;
  return settings;
}

StepParts SluiceStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const stream::StreamOptions options = StreamOptionsOf(request, settings);
  const StreamShape shape(options);
  const double sp = double(settings.sp), dropped = 1 - settings.alpha;
  StepParts parts;
  LayerTimes& layer = parts.layer;
  layer.forward = ForwardKernels(request, sp, true);
  layer.backward = BackwardKernels(request, sp, true);
  layer.recompute = RecomputeKernels(request, sp, dropped);
  AsTheRunComputes(request, sp, dropped, layer);
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  layer.recompute.network =
      RecomputedNetwork(shape, dropped, layer.forward.network);
  AddStreamCopies(request, shape, settings, layer);
  AddRerun(request, settings.rerun_part(request.seq_len), options, shape,
           layer);
  AddZero(request, settings.zero, 2, kMegatronGradient, parts);
  parts.swapped_layers = double(model.layers);
  const double shards = double(request.gpus);
  parts.optimizer_s =
      settings.zero >= 3
          ? OptimizerSeconds(request, model.parameters() / shards, 1)
          : OptimizerSeconds(request, model.parameters(), shards);

  GpuMemory& memory = parts.memory;
  const States states = StatesOf(request, settings);
  memory.states = states.hbm;
  parts.states_copy_s = ExposedStates(request, states.host, layer);
  memory.skeletal = double(shape.kept_bytes() + shape.resident_bytes());
  memory.transient = double(stream::TransientBytes(options).count());
  memory.buffers = double(shape.ring_bytes()) +
                   kIdBytes * double(shape.layout.total_local_rows(0));
  // One layer's gradients whole, and two layers' weights.
  if (settings.zero >= 2) {
    memory.buffers += model.layer_weights() * kMegatronGradient;
  }
  if (settings.zero >= 3) {
    memory.buffers += model.layer_weights() * 2 * kWeightBytes;
  }
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kLeasedMemory;
  // sluice-train's; under FSDP2 weights and ids are torch's.
  const Bytes stage = settings.zero < 2 ? stream::kHostStageBytes : Bytes(0);
  parts.host_bytes_per_node =
      (double(shape.host_bytes() + stage.count()) + states.host) *
      GpusInNode(request);
  const Bytes host(static_cast<int64_t>(request.hardware.host_memory_bytes));
  parts.host_usable_bytes = double(Pinnable(host).count());  // sluiced's own
  return parts;
}

}  // namespace sluice::planner::train
