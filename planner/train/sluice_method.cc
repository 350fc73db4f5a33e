// Models sluice-train, which runs a layer chunk by chunk, with k and v, (o,
// lse) and alpha of the other tensors in host memory; only ids and labels in
// HBM grow with the sequence. planner/stream computes the bytes, as in the run
// itself, so only times are modelled here.
#include <algorithm>
#include <limits>
#include <utility>

#include "planner/stream/fractions.h"
#include "planner/stream/layer_time.h"
#include "planner/stream/schedule.h"
#include "planner/stream/states.h"
#include "planner/stream/transients.h"
#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

using stream::Class;
using stream::LayerTraffic;
using stream::StreamShape;

constexpr double kIdBytes = 16;                   // id and label, int64
constexpr int64_t kRerunLayers[] = {1, 2, 4, 8};  // numbers of layers to try

void Place(const Settings& settings, stream::StreamOptions& options) {
  options.fractions = stream::KeepLastChunks({}, settings.kept);
  options.rerun_chunks = settings.rerun_chunks;
  options.rerun_layers = settings.rerun_layers;
}

// Returns the options of the run. The order of backward's blocks is the one
// that copies less without kept chunks, as in a run with exposed copies.
stream::StreamOptions StreamOptionsOf(const Request& request,
                                      const Settings& settings) {
  stream::StreamOptions options = {
      .model = request.model,
      .layout =
          stream::ChunkLayout(request.seq_len, settings.chunk, settings.sp),
      .dtype = stream::Dtype::kBf16,
      .alpha = settings.alpha,
      .round_output = true};
  if (settings.resident) {
    options.fractions = stream::KeepEverything(options.model);
    return options;
  }
  options.order = stream::OrderOfLeastBytes(options);
  Place(settings, options);
  return options;
}

stream::StateBytes StatesOf(const Request& request, const Settings& settings) {
  return stream::CountStates(request.model, stream::Dtype::kBf16,
                             static_cast<int>(request.gpus), /*rank=*/0,
                             settings.states);
}

// Returns the exposed seconds of copying `bytes` of states in host memory. They
// are copied once per step, both ways at once, while the first sequence's
// forward computes and its own copies leave the link free. The embedding's
// states are copied before any compute.
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

// Splits the layer's compute into the pieces of the streamed step. Assumes that
// projections to heads have the same share of all local kernels as of matmuls.
stream::LayerCompute ComputeOf(const ModelShape& model, double chunks,
                               const LayerTimes& layer) {
  const PassTimes& up = layer.forward;
  const PassTimes& back = layer.backward;
  const double keys = up.attention * (1 - 1 / chunks);
  const double local = back.matmul + back.elementwise;
  const double projections = QkvShare(model) * local;
  return {.keys = keys,
          .forward = up.compute() + up.network - keys,
          .tokens =
              layer.recompute.total() + local - projections + back.network / 2,
          .blocks = back.attention,
          .projections = projections + back.network / 2};
}

// Adds copies. Those exposed at embedding and loss are divided among layers.
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

// Returns the factor of attention's time for the last part of a chunk's
// queries, which sees the most keys of its own chunk.
double LastPart(const Request& request, const Settings& settings,
                int64_t chunks) {
  return 1 + (1 - 1 / double(RowParts(request, settings))) / double(chunks);
}

// Sets the network times of the head exchange. If queries are cut into parts, q
// and o are exchanged only inside each part (consecutive ranks, of one node if
// its GPUs hold whole parts). k and v are sent from all ranks to all, and in
// backward their gradients return in fp32.
void AddExchange(const Request& request, const Settings& settings,
                 const StreamShape& shape, LayerTimes& layer) {
  const double sp = double(settings.sp);
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  const int64_t parts = RowParts(request, settings);
  if (parts == 1) return;
  const Hardware& hardware = request.hardware;
  const int64_t part = settings.sp / parts;
  const double q = 2 * double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  const double inside =
      settings.sp > hardware.gpus_per_node && hardware.gpus_per_node % part != 0
          ? q / hardware.network_bytes_per_s
          : AllToAllSeconds(hardware, q, double(part));
  const double keys = AllToAllSeconds(hardware, kv, sp);
  layer.forward.network = inside + keys;
  layer.backward.network = inside + keys * 4 / double(shape.element);
}

// Adds the part of forward that backward runs again, as the mean over all
// layers: the first chunks' attention among themselves (causal), and all work
// that is linear in their tokens. The last layer of a group reruns only up to
// attention.
void AddRerun(const Request& request, const Settings& settings,
              const stream::StreamOptions& options, const StreamShape& shape,
              LayerTimes& layer) {
  if (shape.layers_rerun() == 0) return;
  const double tokens = settings.rerun_part(request.seq_len);
  const double all = double(shape.layers);
  const double layers = double(shape.layers_rerun()) / all;
  const double whole = layers - layers / double(shape.rerun_layers);
  const double projected = QkvShare(request.model);
  const double local = tokens * (layers * projected + whole * (1 - projected));
  const double q = double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  const PassTimes& up = layer.forward;
  const PassTimes again = {
      .matmul = local * up.matmul,
      .attention = tokens * tokens * layers * up.attention *
                   LastPart(request, settings, shape.rerun_chunks) /
                   LastPart(request, settings, shape.chunks()),
      .elementwise = local * up.elementwise,
      .network =
          tokens * up.network * (layers * (q + kv) + whole * q) / (2 * q + kv)};
  const double link = request.hardware.host_link_bytes_per_s;
  const double keys = again.attention * (1 - 1 / double(shape.rerun_chunks));
  const double forward = again.compute() + again.network - keys;
  layer.recompute.exposed_copy += Exposed(
      stream::TimeRerun(options, keys * all, forward * all, {link, link}) / all,
      keys + forward);
  layer.recompute += again;
}

// Returns the seconds of exchanging the dropped rows of q, k and v again.
double RecomputedNetwork(const StreamShape& shape, double dropped,
                         double network) {
  const double q = double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  return dropped * network * (q + kv) / (2 * q + kv);
}

}  // namespace

std::vector<Settings> PlaceChunks(const Request& request, Settings settings,
                                  bool keep) {
  settings.kept = 0;
  settings.rerun_chunks = 0;
  stream::StreamOptions options = StreamOptionsOf(request, settings);
  const StepParts swapped = TrainerStep(request, settings);
  const double left = swapped.gpu_usable_bytes - swapped.memory.total();
  const Bytes states = StatesOf(request, settings).host;
  const auto shape = [&] {
    Place(settings, options);
    return StreamShape(options);
  };
  const double usable = swapped.host_usable_bytes;
  const auto host_bytes = [&] {
    const Bytes host(shape().host_bytes());
    return double((host + stream::kHostStageBytes + states).count()) *
           GpusInNode(request);
  };
  settings.kept = 1;
  const double all = double(shape().resident_bytes());
  settings.kept = keep ? std::clamp(left / all, 0.0, 1.0) : 0;
  if (settings.alpha > 0 || host_bytes() <= usable) return {settings};
  // A kept chunk takes no host memory, so only the other chunks may run again.
  const int64_t most = shape().resident_from(Class::kInput);
  std::vector<Settings> placed;
  std::pair nearest(std::numeric_limits<double>::infinity(), settings);
  for (const int64_t layers : kRerunLayers) {
    settings.rerun_layers = std::min(layers, request.model.layers);
    settings.rerun_chunks = most;
    if (const double least = host_bytes(); left < 0 || least > usable) {
      if (least < nearest.first) nearest = {least, settings};
      continue;
    }
    int64_t too_few = 0, enough = most;
    while (enough - too_few > 1) {
      settings.rerun_chunks = (enough + too_few) / 2;
      (host_bytes() <= usable ? enough : too_few) = settings.rerun_chunks;
    }
    settings.rerun_chunks = enough;
    placed.push_back(settings);
  }
  if (placed.empty()) placed.push_back(nearest.second);
  return placed;
}

StepParts TrainerStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const stream::StreamOptions options = StreamOptionsOf(request, settings);
  const StreamShape shape(options);
  const double sp = double(settings.sp), dropped = 1 - settings.alpha;
  StepParts parts = StartStep(request, sp);
  LayerTimes& layer = parts.layer;
  layer.recompute = RecomputeKernels(request, sp, dropped);
  FusedKernels(request, sp, dropped, shape.order, layer);
  layer.forward.attention *= LastPart(request, settings, shape.chunks());
  layer.backward.attention *= LastPart(request, settings, shape.chunks());
  AddExchange(request, settings, shape, layer);
  layer.recompute.network =
      RecomputedNetwork(shape, dropped, layer.forward.network);
  AddStreamCopies(request, shape, settings, layer);
  AddRerun(request, settings, options, shape, layer);
  AddZero(request, /*zero=*/1, 2, kMegatronGradient, parts);
  parts.optimizer_s =
      OptimizerSeconds(request, model.parameters(), double(request.gpus));

  GpuMemory& memory = parts.memory;
  const stream::StateBytes states = StatesOf(request, settings);
  memory.states = double(states.hbm().count());
  parts.states_copy_s =
      ExposedStates(request, double(states.host.count()), layer);
  memory.skeletal = double(shape.kept_bytes() + shape.resident_bytes());
  memory.transient = double(stream::TransientBytes(options).count());
  memory.buffers = double(shape.ring_bytes()) +
                   kIdBytes * double(shape.layout.total_local_rows(0));
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kLeasedMemory;
  parts.host_bytes_per_node =
      double((Bytes(shape.host_bytes()) + stream::kHostStageBytes + states.host)
                 .count()) *
      GpusInNode(request);
  parts.host_usable_bytes = PinnableBytes(request);
  return parts;
}

}  // namespace sluice::planner::train
