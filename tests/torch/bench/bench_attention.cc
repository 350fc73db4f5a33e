// Compares attention in chunks, with q, k, v and o streamed from host memory,
// with one whole call: time and peak memory, forward and backward. Also
// compares the blocks of a real step with a whole call (attention_step.h).
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "client/torch/stream/streamed_attention.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/attention_step.h"
#include "tests/torch/bench/bench_node.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int64_t kHeads = 4, kDim = 64;
constexpr int kRepeats = 3;

// A whole sequence [tokens, heads, dim] in host memory.
class HostTensor {
 public:
  explicit HostTensor(int64_t tokens)
      : memory_(Bytes(tokens * kHeads * kDim * 4)),
        tensor(at::from_blob(memory_.data(), {tokens, kHeads, kDim},
                             at::kFloat)) {}

 private:
  Memory memory_;

 public:
  at::Tensor tensor;
};

struct Problem {
  explicit Problem(int64_t tokens)
      : q(tokens),
        k(tokens),
        v(tokens),
        d_o(tokens),
        dq(tokens),
        dk(tokens),
        dv(tokens) {
    for (HostTensor* t : {&q, &k, &v, &d_o}) t->tensor.normal_();
  }
  HostTensor q, k, v, d_o;
  HostTensor dq, dk, dv;  // results of the last run
};

at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}

at::Tensor Unbatched(const at::Tensor& t) {
  return t.squeeze(0).transpose(0, 1).clone();
}

// Attention by one call in each direction, with everything resident.
struct Whole {
  explicit Whole(const Problem& p)
      : q(p.q.tensor.clone()),
        k(p.k.tensor.clone()),
        v(p.v.tensor.clone()),
        d_o(p.d_o.tensor.clone()) {}
  void Run() {
    const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        Batched(q), Batched(k), Batched(v), 0, true);
    std::tie(dq, dk, dv) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            Batched(d_o), Batched(q), Batched(k), Batched(v), o, lse, 0, true);
  }
  at::Tensor q, k, v, d_o, dq, dk, dv;
};

// The streamed layer's attention, with its rings and its arena.
class Chunked {
 public:
  Chunked(Problem& problem, Node& node, int64_t tokens, int64_t chunk)
      : problem_(problem), host_(HostBytes(tokens, chunk)) {
    StreamContext::Options options = Options(tokens, chunk);
    options.copies = &node.engine();
    options.host = host_.data();
    options.host_size = host_.size();
    auto context = StreamContext::Create(options);
    SLUICE_CHECK_OK(context.status());
    context_ = *std::move(context);
    StreamState& state = StreamState::Of(*context_);
    for (int64_t m = 0; m < state.shape.chunks(); ++m) {
      ChunkBuffer& to = state.store.scratch(stream::Class::kOutputGradient, m);
      std::memcpy(to.data, Part(problem.d_o, m).data_ptr(),
                  static_cast<size_t>(to.size));
    }
  }

  absl::Status Run() {
    StreamState& state = StreamState::Of(*context_);
    SLUICE_RETURN_IF_ERROR(state.Enter(stream::Phase::kForward));
    {
      AttentionForward attention(state, 0, state.active);
      for (const int64_t m : state.active) {
        SLUICE_RETURN_IF_ERROR(Forward(state, attention, m));
      }
    }
    SLUICE_RETURN_IF_ERROR(state.Enter(stream::Phase::kAttention));
    return AttentionBackward(state, 0).Run([&](int64_t i) {
      Part(problem_.dq, i).copy_(state.sum(stream::Class::kQueryGradient, i));
      Part(problem_.dk, i).copy_(state.sum(stream::Class::kKeyGradient, i));
      Part(problem_.dv, i).copy_(state.sum(stream::Class::kValueGradient, i));
      return absl::OkStatus();
    });
  }

 private:
  static StreamContext::Options Options(int64_t tokens, int64_t chunk) {
    return {.stream = {.model = {.layers = 1,
                                 .hidden = kHeads * kDim,
                                 .heads = kHeads,
                                 .kv_heads = kHeads,
                                 .ffn = 1,
                                 .vocab = 2},
                       .layout = stream::ChunkLayout(tokens, chunk, 1)},
            .device = at::kCPU};
  }
  static Bytes HostBytes(int64_t tokens, int64_t chunk) {
    return stream::HostBytes(Options(tokens, chunk).stream);
  }
  at::Tensor Part(const HostTensor& t, int64_t m) const {
    const stream::StreamShape& shape = StreamState::Of(*context_).shape;
    return t.tensor.narrow(0, shape.layout.begin(m), shape.rows(m));
  }
  // Runs a chunk's forward as a layer does, with copies instead of projections.
  absl::Status Forward(StreamState& state, AttentionForward& attention,
                       int64_t m) {
    SLUICE_RETURN_IF_ERROR(state.staging().Begin());
    const std::array<int64_t, 3> sizes = {state.shape.rows(m), kHeads, kDim};
    Heads heads;
    heads.q = state.staging().Take(sizes, at::kFloat);
    heads.k = state.staging().Take(sizes, at::kFloat);
    heads.v = state.staging().Take(sizes, at::kFloat);
    heads.o = state.staging().Take(sizes, at::kFloat);
    heads.lse = state.staging().Take({kHeads, sizes[0]}, at::kFloat);
    heads.q.copy_(Part(problem_.q, m));
    heads.k.copy_(Part(problem_.k, m));
    heads.v.copy_(Part(problem_.v, m));
    SendHeads(state, 0, stream::Class::kQ, m, heads.q, true);
    SendHeads(state, 0, stream::Class::kK, m, heads.k, true);
    SendHeads(state, 0, stream::Class::kV, m, heads.v, true);
    state.staging().Flush("q, k, v out");
    SLUICE_RETURN_IF_ERROR(attention.Run(m, heads, heads.o));
    state.staging().Send(heads.o, state.store.saved(0, stream::Class::kO, m));
    state.staging().Send(heads.lse,
                         state.store.saved(0, stream::Class::kLse, m));
    state.staging().Flush("o, lse out");
    return absl::OkStatus();
  }

  Problem& problem_;
  Memory host_;
  std::unique_ptr<StreamContext> context_;
};

// Returns the largest difference relative to the largest value.
double Difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

void Compare(int64_t chunks, int64_t chunk, std::vector<Entry>& entries) {
  const int64_t tokens = chunks * chunk;
  Problem problem(tokens);
  Node node(Bytes(tokens * kHeads * kDim * 4) * 14);
  RegionAllocator& hbm = node.allocator();
  std::vector<double> ratios, whole_s, chunked_s;
  Bytes whole_peak, chunked_peak;
  double error = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    hbm.ResetPeak();
    std::array<at::Tensor, 3> expected;
    {
      Whole whole(problem);
      whole_s.push_back(Seconds([&] { whole.Run(); }));
      whole_peak = hbm.stats().peak;
      expected = {Unbatched(whole.dq), Unbatched(whole.dk),
                  Unbatched(whole.dv)};
    }
    const Bytes held = hbm.stats().used;
    hbm.ResetPeak();
    Chunked streamed(problem, node, tokens, chunk);
    chunked_s.push_back(Seconds([&] { SLUICE_CHECK_OK(streamed.Run()); }));
    chunked_peak = hbm.stats().peak - held;
    SLUICE_CHECK_OK(node.engine().Drain());
    ratios.push_back(chunked_s.back() / whole_s.back());
    for (const double difference :
         {Difference(problem.dq.tensor, expected[0]),
          Difference(problem.dk.tensor, expected[1]),
          Difference(problem.dv.tensor, expected[2])}) {
      SLUICE_CHECK(difference < 1e-4);  // a NaN would be lost in a maximum
      error = std::max(error, difference);
    }
  }
  const std::string shape =
      fmt::format("{} chunks of {} tokens, 4 heads of 64, fp32", chunks, chunk);
  entries.push_back(
      {fmt::format("attention time, {} x {}", chunks, chunk), Median(ratios),
       "x whole call", 1.15, true,
       fmt::format("{}: {:.2f} s against {:.2f} s, {} thread(s), gradients "
                   "differ by {:.1e}",
                   shape, Median(chunked_s), Median(whole_s),
                   at::get_num_threads(), error)});
  entries.push_back(
      {fmt::format("attention memory, {} x {}", chunks, chunk),
       static_cast<double>(chunked_peak.count()) /
           static_cast<double>(whole_peak.count()),
       "x whole call", 0.25, true,
       fmt::format("{}: {} against {}", shape, FormatBytes(chunked_peak),
                   FormatBytes(whole_peak))});
}

std::vector<Entry> Measure() {
  std::vector<Entry> entries = AttentionOfSteps();
  // A check has such wide limits that short chunks suffice. They take a seventh
  // of the time.
  const int64_t chunk = IsCheck() ? 384 : 1024;
  for (const int64_t chunks : {16, 24}) Compare(chunks, chunk, entries);
  return entries;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(sluice::bench::ComputeThreads());
  const at::NoGradGuard no_grad;
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
