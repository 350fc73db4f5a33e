// This project's runtime (client/torch/README.md, "The streamed layer"): a
// layer chunk by chunk, k and v in host memory, (o, lse) kept there too, alpha
// of the rest, nothing in HBM that grows with the sequence but ids and labels.
// The formulas are that page's, in its letters.
#include <algorithm>

#include "planner/train/constants.h"
#include "planner/train/layer.h"
#include "planner/train/sequence_parallel.h"

namespace sluice::planner::train {
namespace {

constexpr double e = kElementBytes;
constexpr double kPrefetch = 2;  // sluice-train --prefetch's default
constexpr double kIdBytes = 16;  // id and label, int64

// One rank's widths and rows.
struct Rank {
  Rank(const Request& request, const Settings& settings)
      : sp(double(settings.sp)),
        S(double(request.seq_len)),
        C(double(std::min(settings.chunk, request.seq_len))),
        D(double(request.model.query_width()) / sp),
        G(std::max(double(request.model.key_width()) / sp,
                   double(request.model.head_dim()))),
        heads(double(request.model.heads) / sp),
        h(double(request.model.hidden)),
        f(double(request.model.ffn)),
        wide(request.model.ffn_width() + f),
        alpha(settings.alpha) {}
  double N() const { return S / sp; }       // rows of this rank
  double R() const { return C / sp; }       // of a chunk
  double K() const { return alpha * R(); }  // kept ones
  double chunks() const { return std::max(1.0, S / C); }
  // Rows that off-diagonal blocks of a layer fetch, summed.
  double earlier() const { return S * (chunks() - 1) / 2; }

  double sp, S, C, D, G, heads, h, f;
  double wide;  // FFN classes: up, (gate,) activation
  double alpha;
};

double Rings(const Rank& r) {
  const double kept = r.K() * (3 * r.h + r.wide);
  const double forward = 2 * e * (r.C * (r.D + 2 * r.G) + kept + r.R() * r.h) +
                         8 * r.C * r.D + 8 * r.C * r.heads +
                         2 * e * r.R() * r.h + kPrefetch * e * 2 * r.C * r.G;
  const double dropped = (1 - r.alpha) * r.C * (r.D + 2 * r.G);
  const double tokens = 2 * e * (r.C * r.D + r.R() * r.h + dropped) +
                        2 * e * (2 * r.R() * r.h + r.K() * (2 * r.h + r.wide)) +
                        8 * r.C * r.D;
  const double attention =
      2 * e * r.R() * r.h + 2 * e * (2 * r.R() + r.K()) * r.h +
      kPrefetch * (2 * e * r.C * r.D + 8 * r.C * r.D + 4 * r.C * r.heads) +
      4 * e * r.C * r.G + 4 * r.C * (r.D + 2 * r.G);
  return std::max({forward, tokens, attention});
}

// Of the tallest segment: a block's backward (fp32 copies of q, k, v, o, dO and
// of the gradients), the FFN's backward in halves, the loss (logits about two
// hidden states; bf16, fp32 and their gradient).
double Transients(const Rank& r) {
  const double block = 4 * r.C * (4 * r.D + 4 * r.G);
  const double ffn = r.R() / 2 * r.wide * 2 * e + 4 * r.R() * r.h * e;
  const double loss = 2 * r.R() * r.h * (e + 4 + 4);
  return std::max({block, ffn, loss});
}

double HostBytes(const Request& request, const Rank& r) {
  const double layers = double(request.model.layers);
  const double kept =
      r.alpha * (r.S * (r.D + 2 * r.G) + r.N() * (3 * r.h + r.wide)) * e;
  return (layers + 1) * r.N() * r.h * e +
         layers * (r.S * (4 * r.D + 4 * r.heads) + kept) +
         r.S * (r.D + 2 * r.G) * e * (1 - r.alpha) + r.S * r.D * e +
         4 * r.S * r.D;
}

// Bytes a layer moves in one phase.
struct Traffic {
  double in = 0, out = 0;
};

Traffic ForwardTraffic(const Rank& r) {
  const double kept = r.alpha * (r.S * r.D + r.N() * (3 * r.h + r.wide)) * e;
  return {.in = r.N() * r.h * e + r.earlier() * 2 * r.G * e,
          .out = r.N() * r.h * e + r.S * 2 * r.G * e +
                 r.S * (4 * r.D + 4 * r.heads) + kept};
}

// Phases A and C: token-local work.
Traffic TokenTraffic(const Rank& r) {
  const double kept = r.alpha * r.N() * (3 * r.h + r.wide) * e;
  return {.in = 4 * r.N() * r.h * e + 4 * r.S * r.D + kept,
          .out = r.S * r.D * e + 2 * r.N() * r.h * e +
                 (1 - r.alpha) * r.S * (r.D + 2 * r.G) * e};
}

// Phase B: blocks (i, j), j >= i.
Traffic BlockTraffic(const Rank& r) {
  const double blocks = r.earlier() + r.S;
  return {.in = blocks * (2 * r.D * e + 4 * r.D + 4 * r.heads) +
                r.earlier() * 4 * r.D + r.S * 2 * r.G * e,
          .out = blocks * 4 * r.D};
}

double ExposedOf(const Traffic& traffic, double link, double compute) {
  return Exposed(std::max(traffic.in, traffic.out) / link, compute);
}

void AddCopies(const Request& request, const Rank& r, LayerTimes& layer) {
  const double link = request.hardware.host_link_bytes_per_s;
  const Traffic forward = ForwardTraffic(r);
  const Traffic tokens = TokenTraffic(r), blocks = BlockTraffic(r);
  PassTimes& up = layer.forward;
  PassTimes& back = layer.backward;
  up.copy_in = forward.in / link;
  up.copy_out = forward.out / link;
  back.copy_in = (tokens.in + blocks.in) / link;
  back.copy_out = (tokens.out + blocks.out) / link;
  // What a phase's first chunk needs overlaps with nothing.
  const double first_hidden = r.R() * r.h * e / link;
  const double first_block = r.C * (2 * r.D * e + 4 * r.D + 2 * r.G * e) / link;
  up.exposed_copy =
      first_hidden + ExposedOf(forward, link, up.compute() + up.network);
  const double local =
      layer.recompute.total() + back.matmul + back.elementwise + back.network;
  back.exposed_copy = 2 * first_hidden + first_block +
                      ExposedOf(tokens, link, local) +
                      ExposedOf(blocks, link, back.attention);
}

}  // namespace

StepParts SluiceStep(const Request& request, const Settings& settings) {
  const ModelShape& model = request.model;
  const Rank rank(request, settings);
  StepParts parts;
  LayerTimes& layer = parts.layer;
  layer.forward = ForwardKernels(request, rank.sp, true);
  layer.backward = BackwardKernels(request, rank.sp, true);
  layer.recompute = RecomputeKernels(request, rank.sp, 1 - rank.alpha);
  layer.forward.network = layer.backward.network =
      ExchangeSeconds(request, rank.sp);
  // q, k, v of dropped rows are exchanged again.
  layer.recompute.network = (1 - rank.alpha) * layer.forward.network *
                            (rank.D + 2 * rank.G) / (2 * rank.D + 2 * rank.G);
  AddCopies(request, rank, layer);
  AddZero(request, settings.zero, 2, kMegatronGradient, parts);
  parts.swapped_layers = double(model.layers);
  parts.optimizer_s = OptimizerSeconds(
      request, model.parameters() / (settings.zero >= 3 ? rank.sp : 1),
      double(request.gpus));

  GpuMemory& memory = parts.memory;
  memory.states = ZeroStates(request, settings.zero, kMegatronGradient);
  memory.transient = Transients(rank);
  memory.buffers = Rings(rank) + kIdBytes * rank.N();
  if (settings.zero >= 3) {
    // Two layers' weights and one's gradients, gathered.
    memory.buffers +=
        model.layer_weights() * (2 * kWeightBytes + kMegatronGradient);
  }
  parts.gpu_usable_bytes = request.hardware.memory_bytes * kLeasedMemory;
  parts.host_bytes_per_node = HostBytes(request, rank) * GpusInNode(request);
  parts.host_usable_bytes = request.hardware.host_memory_bytes * kPinnedHost;
  return parts;
}

}  // namespace sluice::planner::train
