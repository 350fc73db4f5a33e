// Measures the cost of streaming if nothing needs to be streamed: runs a
// streamed step that keeps every class in HBM, alternating with a step of the
// baseline keep-all on the same weights, text and memory.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/torch/baseline/baseline.h"
#include "client/torch/stream/streamed_model.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_step.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int64_t kSequence = 2048;
constexpr int64_t kChunks[] = {256, 512, 1024, 2048};
constexpr int kRounds = 7;

const stream::ModelShape kModel = {.layers = 4,
                                   .hidden = 256,
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .ffn = 688,
                                   .vocab = 4096};

double KeepAll(Node& node, StepTensors& tensors) {
  return Seconds([&] {
    SLUICE_CHECK_OK(BaselineStep({.model = kModel,
                                  .seq_len = kSequence,
                                  .method = BaselineMethod::kKeepAll,
                                  .device = at::kCPU,
                                  .allocator = &node.allocator()},
                                 tensors.weights, tensors.gradients,
                                 tensors.tokens, tensors.tokens, kSequence)
                        .status());
  });
}

// The context lives only during the step, like keep-all's tensors, so that each
// method has all of HBM while it runs.
double Streamed(Node& node, StepTensors& tensors, int64_t chunk) {
  StreamContext::Options options{
      .stream = {.model = kModel,
                 .layout = stream::ChunkLayout(kSequence, chunk, 1),
                 .fractions = stream::KeepEverything(kModel)},
      .device = at::kCPU,
      .copies = &node.engine(),
      .allocator = &node.allocator()};
  SLUICE_CHECK(stream::HostBytes(options.stream) == Bytes(0));
  auto context = StreamContext::Create(options);
  SLUICE_CHECK_OK(context.status());
  return Seconds([&] {
    SLUICE_CHECK_OK(StreamedStep(**context, tensors.weights, tensors.gradients,
                                 tensors.tokens, tensors.tokens, kSequence)
                        .status());
  });
}

std::vector<Entry> Measure() {
  Node node(GiB(1));
  StepTensors tensors(kModel, kSequence);
  std::vector<double> keep_all, ratios[std::size(kChunks)];
  // A check allows ten times the target, so one round suffices.
  const int rounds = IsCheck() ? 1 : kRounds;
  for (int round = 0; round <= rounds; ++round) {
    const double baseline = KeepAll(node, tensors);
    for (size_t i = 0; i < std::size(kChunks); ++i) {
      const double streamed = Streamed(node, tensors, kChunks[i]);
      if (round > 0) ratios[i].push_back(streamed / baseline);
    }
    if (round > 0) keep_all.push_back(baseline);  // the first round warms up
  }
  const client::CopyStats moved = node.engine().stats();
  double best = 0;
  std::string all;
  for (size_t i = 0; i < std::size(kChunks); ++i) {
    const double median = Median(ratios[i]);
    best = i == 0 ? median : std::min(best, median);
    all += fmt::format("{}{:.3f} at chunk {}", i == 0 ? "" : ", ", median,
                       kChunks[i]);
  }
  return {{"fits", best, "x keep-all", 1.05, true,
           fmt::format("a step of {} tokens with everything kept, {}; keep-all "
                       "{:.2f} s",
                       kSequence, all, Median(keep_all))},
          {"fits moved", double((moved.h2d + moved.d2h).count()), "bytes", 0.0,
           true, "copied by all streamed steps together"}};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
