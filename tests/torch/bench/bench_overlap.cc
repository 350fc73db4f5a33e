// How much of its copies a streamed step hides: its wall time against the same
// step with its data resident and copies off, on links whose copies of both
// directions together take as long as the computation.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <algorithm>

#include "client/torch/stream/streamed_model.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_node.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;
using client::CopyEngine;
using client::CopyRequest;
using client::Ticket;

constexpr int kRepeats = 3;
constexpr int64_t kChunk = 512;

// Copies that can be switched off: rings then keep what they last held, and
// every ticket is reached.
class SwitchedEngine final : public CopyEngine {
 public:
  explicit SwitchedEngine(CopyEngine* engine) : engine_(engine) {}
  void Switch(bool on) { on_ = on; }

  Ticket MarkCompute() override {
    return on_ ? engine_->MarkCompute() : Ticket();
  }
  Ticket Enqueue(CopyRequest request) override {
    return on_ ? engine_->Enqueue(std::move(request)) : Ticket();
  }
  absl::Status Wait(const Ticket& ticket) override {
    return engine_->Wait(ticket);
  }
  absl::Status Drain() override { return engine_->Drain(); }
  client::CopyStats stats() const override { return engine_->stats(); }
  std::vector<client::CopyRecord> TakeTimeline() override {
    return engine_->TakeTimeline();
  }

 private:
  CopyEngine* engine_;
  bool on_ = true;
};

class Step {
 public:
  Step(Node& node, CopyEngine& copies)
      : copies_(copies),
        options_(Options(node, copies)),
        host_(stream::HostBytes(options_.stream)) {
    options_.host = host_.data();
    options_.host_size = host_.size();
    auto context = StreamContext::Create(options_);
    SLUICE_CHECK_OK(context.status());
    context_ = *std::move(context);
    weights_ = InitialTensors(options_.stream.model, at::kFloat, 1);
    gradients_ = ZeroTensors(options_.stream.model, at::kFloat);
    tokens_ = at::randint(options_.stream.model.vocab,
                          {options_.stream.layout.seq_len()}, at::kLong);
  }

  // Seconds until the step's last copy is out as well.
  double Run() {
    return Seconds([&] {
      SLUICE_CHECK_OK(StreamedStep(*context_, weights_, gradients_, tokens_,
                                   tokens_, tokens_.size(0))
                          .status());
      SLUICE_CHECK_OK(copies_.Drain());
    });
  }
  const StreamContext::Options& options() const { return options_; }

 private:
  static StreamContext::Options Options(Node& node, CopyEngine& copies) {
    return {.stream = {.model = {.layers = 2,
                                 .hidden = 256,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .ffn = 256,
                                 .vocab = 256},
                       .layout = stream::ChunkLayout(16 * kChunk, kChunk, 1),
                       .alpha = 0.5,
                       .prefetch_depth = 3},
            .copies = &copies,
            .allocator = &node.allocator()};
  }

  CopyEngine& copies_;
  StreamContext::Options options_;
  Memory host_;
  std::unique_ptr<StreamContext> context_;
  ModelTensors weights_, gradients_;
  at::Tensor tokens_;
};

// Of a step's recorded compute, the share of attention blocks.
double AttentionShare(const std::vector<plan::SegmentKind>& kinds) {
  double attention = 0, all = 0;
  for (const plan::SegmentKind& kind : kinds) {
    const double seconds = kind.seconds * double(kind.executions);
    all += seconds;
    if (kind.name.rfind("block.", 0) == 0) attention += seconds;
  }
  return attention / all;
}

std::vector<Entry> Measure() {
  Node node(MiB(256));
  SwitchedEngine copies(&node.engine());
  Step step(node, copies);
  node.allocator().RecordSegments(true);
  const client::CopyStats before = copies.stats();
  step.Run();  // fills the rings with what a step has in them
  const client::CopyStats after = copies.stats();
  const double share = AttentionShare(node.allocator().TakeRecorded());
  node.allocator().RecordSegments(false);
  const Bytes in = after.h2d - before.h2d, out = after.d2h - before.d2h;

  copies.Switch(false);
  const double compute = step.Run();
  const double speed = static_cast<double>((in + out).count()) / compute;
  node.SetLinkSpeed(speed);
  std::vector<double> ratios, resident_s, streamed_s;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    copies.Switch(false);
    resident_s.push_back(step.Run());
    copies.Switch(true);
    streamed_s.push_back(step.Run());
    ratios.push_back(streamed_s.back() / resident_s.back());
  }
  return {
      {"overlap", Median(ratios), "x resident", 1.2, true,
       fmt::format("{} layers, {} chunks of {} tokens: {:.2f} s against "
                   "{:.2f} s resident; attention {:.0f} % of compute, {} in "
                   "and {} out at {:.2f} GB/s each way",
                   step.options().stream.model.layers,
                   step.options().stream.layout.chunks(), kChunk,
                   Median(streamed_s), Median(resident_s), 100 * share,
                   FormatBytes(in), FormatBytes(out), speed / 1e9)},
      {"overlap attention share", share, "of compute", 0.8, false,
       "with less the overlap figure would not count"}};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
