// This project's runtime: a layer chunk by chunk, k and v in host memory,
// (o, lse) kept there too, alpha of the rest; nothing in HBM grows with the
// sequence but ids and labels. Bytes are those of planner/stream, by which the
// runtime itself allocates and copies; only the times are modelled here.
#include <algorithm>

#include "planner/stream/host_stage.h"
#include "planner/stream/schedule.h"
#include "planner/stream/states.h"
#include "planner/stream/transients.h"
#include "planner/train/constants.h"
#include "planner/train/layer.h"
#include "planner/train/sequence_parallel.h"

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
stream::StreamOptions OptionsOf(const Request& request,
                                const Settings& settings) {
  stream::StreamOptions options = {
      .model = DividedBy(request.model, settings.sp),
      .layout =
          stream::ChunkLayout(request.seq_len, settings.chunk, settings.sp),
      .dtype = stream::Dtype::kBf16,
      .alpha = settings.alpha};
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

// What the run allocates on its fullest rank, to the byte; with ZeRO-3, which
// sluice-train does not do, what FSDP2 leaves of it.
double States(const Request& request, const Settings& settings) {
  if (settings.zero >= 2) {
    return ZeroStates(request, settings.zero, kMegatronGradient);
  }
  const int shards = settings.zero == 1 ? static_cast<int>(request.gpus) : 1;
  return double(stream::CountStates(request.model, stream::Dtype::kBf16, shards,
                                    /*rank=*/0)
                    .total()
                    .count());
}

double ExposedOf(const Traffic& traffic, double link, double compute) {
  return Exposed(double(std::max(traffic.in, traffic.out)) / link, compute);
}

void AddCopies(const Request& request, const StreamShape& shape,
               LayerTimes& layer) {
  const double link = request.hardware.host_link_bytes_per_s;
  const LayerTraffic traffic = stream::CountTraffic(shape);
  PassTimes& up = layer.forward;
  PassTimes& back = layer.backward;
  up.copy_in = double(traffic.forward.in) / link;
  up.copy_out = double(traffic.forward.out) / link;
  back.copy_in = double(traffic.tokens.in + traffic.blocks.in) / link;
  back.copy_out = double(traffic.tokens.out + traffic.blocks.out) / link;
  // What a phase's first chunk needs overlaps with nothing.
  const auto first = [&](Class which) {
    return double(shape.chunk_bytes(which, 0)) / link;
  };
  const double first_hidden = first(Class::kInput);
  const double first_block = first(Class::kQ) + first(Class::kOutputGradient) +
                             first(Class::kO) + 2 * first(Class::kK);
  up.exposed_copy = first_hidden +
                    ExposedOf(traffic.forward, link, up.compute() + up.network);
  const double local =
      layer.recompute.total() + back.matmul + back.elementwise + back.network;
  back.exposed_copy = 2 * first_hidden + first_block +
                      ExposedOf(traffic.tokens, link, local) +
                      ExposedOf(traffic.blocks, link, back.attention);
}

// q, k, v of dropped rows are exchanged again, of the q, k, v and o of all.
double RecomputedNetwork(const StreamShape& shape, double dropped,
                         double network) {
  const double q = double(shape.class_bytes(Class::kQ));
  const double kv = 2 * double(shape.class_bytes(Class::kK));
  return dropped * network * (q + kv) / (2 * q + kv);
}

}  // namespace

StepParts SluiceStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const stream::StreamOptions options = OptionsOf(request, settings);
  const StreamShape shape(options);
  const double sp = double(settings.sp), dropped = 1 - settings.alpha;
  StepParts parts;
  LayerTimes& layer = parts.layer;
  layer.forward = ForwardKernels(request, sp, true);
  layer.backward = BackwardKernels(request, sp, true);
  layer.recompute = RecomputeKernels(request, sp, dropped);
  layer.forward.network = layer.backward.network = ExchangeSeconds(request, sp);
  layer.recompute.network =
      RecomputedNetwork(shape, dropped, layer.forward.network);
  AddCopies(request, shape, layer);
  AddZero(request, settings.zero, 2, kMegatronGradient, parts);
  parts.swapped_layers = double(model.layers);
  parts.optimizer_s = OptimizerSeconds(
      request, model.parameters() / (settings.zero >= 3 ? sp : 1),
      double(request.gpus));

  GpuMemory& memory = parts.memory;
  memory.states = States(request, settings);
  memory.transient = double(stream::TransientBytes(options).count());
  memory.buffers = double(shape.ring_bytes()) +
                   kIdBytes * double(shape.layout.total_local_rows(0));
  if (settings.zero >= 3) {
    // Two layers' weights and one's gradients, gathered.
    memory.buffers +=
        model.layer_weights() * (2 * kWeightBytes + kMegatronGradient);
  }
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kLeasedMemory;
  // sluice-train's; under FSDP2 weights and ids are torch's.
  const Bytes stage = settings.zero < 3 ? stream::kHostStageBytes : Bytes(0);
  parts.host_bytes_per_node =
      double(shape.host_bytes() + stage.count()) * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kPinnedHost;
  return parts;
}

}  // namespace sluice::planner::train
