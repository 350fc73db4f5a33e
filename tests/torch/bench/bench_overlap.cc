// Measures how much of its copies a streamed step hides. The step's compute
// time is its wall time with resident data and without copies. The same step
// then runs on links of a set speed:
//   overlap       copies of both directions together take as long as compute;
//                 the step is mostly attention, which is the easy case;
//   overlap even  copies of the busier direction alone take as long as compute,
//                 so that every wait shows.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_step.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int kRepeats = 3, kEvenRepeats = 7;
constexpr int64_t kChunk = 512;

// A check has such wide limits that half of the length suffices. It takes a
// quarter of the time.
stream::ChunkLayout Layout() {
  return stream::ChunkLayout((IsCheck() ? 8 : 16) * kChunk, kChunk, 1);
}

// Returns the share of attention blocks in a step's recorded compute.
double AttentionShare(const std::vector<plan::SegmentKind>& kinds) {
  double attention = 0, all = 0;
  for (const plan::SegmentKind& kind : kinds) {
    const double seconds = kind.seconds * double(kind.executions);
    all += seconds;
    if (kind.name.rfind("block.", 0) == 0) attention += seconds;
  }
  return attention / all;
}

struct Moved {
  Bytes in, out;
};

// Returns the bytes that a step moves. The run also fills the rings.
Moved RunOnce(BenchStep& step) {
  const client::CopyStats before = step.copies().stats();
  step.Run();
  const client::CopyStats after = step.copies().stats();
  return {after.h2d - before.h2d, after.d2h - before.d2h};
}

double Resident(BenchStep& step) {
  step.copies().Switch(false);
  const double seconds = step.Run();
  step.copies().Switch(true);
  return seconds;
}

std::vector<Entry> Overlap() {
  Node node(MiB(256));
  BenchStep step(node, {.model = {.layers = 2,
                                  .hidden = 256,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .ffn = 256,
                                  .vocab = 256},
                        .layout = Layout(),
                        .alpha = 0.5,
                        .prefetch_depth = 3});
  node.allocator().RecordSegments(true);
  const auto [in, out] = RunOnce(step);
  const double share = AttentionShare(node.allocator().TakeRecorded());
  node.allocator().RecordSegments(false);

  const double speed = static_cast<double>((in + out).count()) / Resident(step);
  node.SetLinkSpeed(speed);
  std::vector<double> ratios, resident_s, streamed_s;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    resident_s.push_back(Resident(step));
    streamed_s.push_back(step.Run());
    ratios.push_back(streamed_s.back() / resident_s.back());
  }
  return {
      {"overlap", Median(ratios), "x resident", 1.2, true,
       fmt::format("{} layers, {} chunks of {} tokens: {:.2f} s against "
                   "{:.2f} s resident; attention {:.0f} % of compute, {} in "
                   "and {} out at {:.2f} GB/s each way",
                   step.options().model.layers, step.options().layout.chunks(),
                   kChunk, Median(streamed_s), Median(resident_s), 100 * share,
                   FormatBytes(in), FormatBytes(out), speed / 1e9)},
      {"overlap attention share", share, "of compute", 0.8, false,
       "below the target, the overlap figure says nothing"}};
}

// Each round sets the link's speed by the resident run before it. Since the
// machine's speed drifts, `compute` is the mean of the resident runs before and
// after the streamed run.
Entry EvenOverlap() {
  Node node(MiB(256));
  BenchStep step(node, {.model = {.layers = 2,
                                  .hidden = 256,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .ffn = 688,
                                  .vocab = 256},
                        .layout = Layout(),
                        .prefetch_depth = 3});
  const auto [in, out] = RunOnce(step);
  const auto bytes = static_cast<double>(std::max(in, out).count());
  std::vector<double> ratios, balance, larger_s;
  double before = Resident(step);
  for (int repeat = 0; repeat < bench::Rounds(kEvenRepeats); ++repeat) {
    const double copies = before;
    node.SetLinkSpeed(bytes / copies);
    const double streamed = step.Run();
    const double after = Resident(step), compute = (before + after) / 2;
    balance.push_back(copies / compute);
    larger_s.push_back(std::max(copies, compute));
    ratios.push_back(streamed / larger_s.back());
    before = after;
  }
  return {"overlap even",
          Median(ratios),
          "x the larger",
          1.2,
          true,
          fmt::format("{} layers, {} chunks of {} tokens, {} in and {} out; "
                      "copies/compute {:.2f}, the larger {:.2f} s",
                      step.options().model.layers,
                      step.options().layout.chunks(), kChunk, FormatBytes(in),
                      FormatBytes(out), Median(balance), Median(larger_s))};
}

std::vector<Entry> Measure() {
  std::vector<Entry> entries = Overlap();
  entries.push_back(EvenOverlap());
  return entries;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
