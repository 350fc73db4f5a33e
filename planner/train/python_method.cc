// Models engine python, the Python package: layers of the user's model run
// chunk by chunk, with hidden states in host memory, each layer a unit of
// FSDP2, and sluice.AdamW's states in HBM or host memory
// (client/python/DESIGN.md has the formula of host bytes). A layer's backward
// goes from the last chunk to the first. It reruns each chunk's forward without
// attention, then runs the chunk's backward.
#include <algorithm>
#include <cmath>

#include "planner/stream/layouts.h"
#include "planner/stream/states.h"
#include "planner/train/constants.h"
#include "planner/train/layer.h"

namespace sluice::planner::train {
namespace {

constexpr double kPythonBuckets = 2;  // of sluice.AdamW, in HBM
// Memory traffic per parameter when a chunk's bf16 gradients are added in fp32.
constexpr double kSumMoves = 12;

// The bytes of one layer's tensors of all tokens, on the rank with the most.
struct Rank {
  Rank(const Request& request, const Settings& settings) {
    const ModelShape& model = request.model;
    const double tokens = double(request.seq_len);
    const stream::ChunkLayout layout(request.seq_len, settings.chunk,
                                     settings.sp);
    // q is rounded up, because an estimate may have an sp that does not divide
    // the heads.
    const int64_t q = (model.heads + settings.sp - 1) / settings.sp;
    const int64_t group = model.heads / model.kv_heads;
    const int64_t kv = q % group == 0 ? q / group : group % q == 0 ? 1 : q;
    const double width = double(model.head_dim()) * kElementBytes;
    chunks = double(layout.chunks());
    rows = double(layout.total_local_rows(0));
    inputs = rows * double(model.hidden) * kElementBytes;
    queries = tokens * double(q) * width;
    keys = tokens * 2 * double(kv) * width;
    saved = keys + queries + tokens * double(q) * 4;
    again = settings.rerun_part(request.seq_len);
  }

  double HostBytes(double layers) const {
    return layers * inputs + (layers * (1 - again) + again) * saved +
           std::max(inputs, (inputs + 2 * keys) * (1 - 1 / chunks));
  }

  double chunks, rows;
  double inputs;   // one set of hidden states
  double queries;  // q, o, or their gradients
  double keys;     // k and v; their gradient sums are twice as wide
  double saved;    // k, v, o and lse
  double again;    // fraction of the tokens that runs again
};

double StateBytes(const Request& request) {
  return request.model.parameters() / double(request.gpus) * kOptimizerBytes;
}

double HostBytesPerNode(const Request& request, const Settings& settings) {
  const bool in_host = settings.states == stream::StatePlace::kHost;
  return (Rank(request, settings).HostBytes(double(request.model.layers)) +
          (in_host ? StateBytes(request) : 0)) *
         GpusInNode(request);
}

// Sets a pass's copies of `in` and `out` bytes. Both directions run at once,
// and overlap with compute and exchanges (`beside` seconds), except for the
// `first` bytes, which are fetched for the first chunk.
void AddCopies(const Request& request, double in, double out, double first,
               PassTimes& pass, double beside) {
  const double link = request.hardware.host_link_bytes_per_s;
  pass.copy_in = in / link;
  pass.copy_out = out / link;
  pass.exposed_copy = first / link + Exposed(std::max(in, out) / link, beside);
}

void AddPythonCopies(const Request& request, const Rank& rank, double sp,
                     LayerTimes& layer) {
  const double before = (rank.chunks - 1) / 2;  // mean number of earlier chunks
  PassTimes& up = layer.forward;
  PassTimes& back = layer.backward;
  AddCopies(request, rank.inputs + rank.keys * before, rank.inputs + rank.saved,
            rank.inputs / rank.chunks, up, up.total());
  const double own = 2 * rank.inputs + rank.saved;
  const double sums = 2 * rank.keys * before;
  AddCopies(request, own + rank.keys * before + sums, rank.inputs + sums,
            own / rank.chunks, back, layer.recompute.total() + back.total());
  // Adds copies of the embedding's output and gradient, and the loss's rows.
  const double hidden = rank.inputs / request.hardware.host_link_bytes_per_s;
  up.exposed_copy += (2 * hidden + Exposed(hidden, HeadSeconds(request, sp))) /
                     double(request.model.layers);
}

// Adds a rerun of the whole layer for the first tokens, with the attention
// among these tokens.
void AddPythonRerun(const Request& request, const Rank& rank,
                    LayerTimes& layer) {
  if (rank.again == 0) return;
  const double part = rank.again;
  PassTimes again = layer.forward;
  for (double* linear : {&again.matmul, &again.elementwise, &again.network}) {
    *linear *= part;
  }
  again.attention *= part * part;
  again.exposed_copy = 0;
  AddCopies(request,
            part * (rank.inputs + rank.keys * (part * rank.chunks - 1) / 2),
            part * rank.saved, rank.inputs / rank.chunks, again, again.total());
  layer.recompute.exposed_copy += again.exposed_copy;
  layer.recompute += again;
}

GpuMemory PythonMemory(const Request& request, const Settings& settings,
                       const Rank& rank) {
  const ModelShape& model = request.model;
  const double share = model.parameters() / double(request.gpus);
  GpuMemory memory;
  // torch's AdamW, with fp32 parameters, takes 16 bytes per parameter too.
  memory.states = share * (kWeightBytes + kDeepSpeedGradient);
  memory.states +=
      settings.states == stream::StatePlace::kHbm
          ? share * kOptimizerBytes
          : kPythonBuckets * double(stream::kMostUnitBytes.count());
  // Summed gradients of a layer and of the head. ZeRO-3 adds the weights of two
  // gathered layers, the gradients of one, and the parameters outside layers.
  memory.buffers = (model.layer_weights() + model.head_weights()) * kPythonSums;
  if (settings.zero >= 3) {
    memory.buffers +=
        model.layer_weights() * (2 * kWeightBytes + kDeepSpeedGradient) +
        (model.parameters() - double(model.layers) * model.layer_weights()) *
            kWeightBytes;
  }
  const double rotary =
      model.rope ? 2 * double(model.head_dim()) * kElementBytes : 0;
  memory.buffers += double(request.seq_len) * (kPythonTokenBytes + rotary);
  const double chunk = double(std::min(settings.chunk, request.seq_len));
  const double part = chunk / double(request.seq_len);
  memory.transient = part * (rank.rows * kElementBytes *
                                 (kPythonHiddens * double(model.hidden) +
                                  kPythonWide * double(model.ffn)) +
                             kPythonQueries * rank.queries);
  const double head_rows =
      std::max(kPythonHeadRows,
               std::min(chunk, kPythonHeadHiddens * double(model.hidden) *
                                   chunk / double(model.vocab)));
  const double logits =
      std::min(head_rows, rank.rows) * double(model.vocab) * kDeepSpeedLogit;
  if (logits > memory.transient) {
    memory.transient = 0;
    memory.logits = logits;
  }
  return memory;
}

}  // namespace

Settings PlaceRerun(const Request& request, Settings settings) {
  settings.rerun_chunks = 0;
  const double over =
      HostBytesPerNode(request, settings) - PinnableBytes(request);
  if (over <= 0) return settings;
  const Rank rank(request, settings);
  const double saves =
      (double(request.model.layers) - 1) * rank.saved * GpusInNode(request);
  const double part = std::min(1.0, over / std::max(1.0, saves));
  settings.rerun_chunks = std::min(
      int64_t(rank.chunks), int64_t(std::ceil(part * double(request.seq_len) /
                                              double(settings.chunk))));
  return settings;
}

StepParts PythonStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const Rank rank(request, settings);
  const double sp = double(settings.sp);
  StepParts parts = StartStep(request, sp);
  LayerTimes& layer = parts.layer;
  layer.recompute = RecomputeKernels(request, sp, 1);
  UnfusedKernels(request, sp, 1, layer);
  layer.backward.elementwise += rank.chunks * kSumMoves *
                                model.layer_weights() /
                                request.hardware.memory_bytes_per_s;
  for (PassTimes* pass : {&layer.forward, &layer.recompute, &layer.backward}) {
    pass->network = ExchangeSeconds(request, sp);
  }
  AddPythonCopies(request, rank, sp, layer);
  AddPythonRerun(request, rank, layer);
  AddZero(request, settings.zero, 2, kDeepSpeedGradient, parts);
  if (settings.states == stream::StatePlace::kHost) {
    // States are copied both ways at once, and only inside step().
    parts.states_copy_s =
        Exposed(StateBytes(request) / request.hardware.host_link_bytes_per_s,
                parts.optimizer_s);
  }
  parts.memory = PythonMemory(request, settings, rank);
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kPythonMemory;
  parts.host_bytes_per_node = HostBytesPerNode(request, settings);
  parts.host_usable_bytes = PinnableBytes(request);
  return parts;
}

}  // namespace sluice::planner::train
