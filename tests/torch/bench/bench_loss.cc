// Measures the cost of the chunk size for a large vocabulary: the seconds of a
// streamed step with chunks of 64 to 2,048 tokens, each chunk size in turn.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/torch/stream/streamed_model.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_step.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int64_t kSequence = 2048;
constexpr int64_t kChunks[] = {64, 128, 256, 512, 1024, 2048};
constexpr int kRounds = 5;

const stream::ModelShape kModel = {.layers = 2,
                                   .hidden = 256,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .ffn = 344,
                                   .vocab = 32768};

class Step {
 public:
  Step(Node& node, StepTensors& tensors, int64_t chunk)
      : node_(node),
        tensors_(tensors),
        options_(Options(node, chunk)),
        host_(stream::HostBytes(options_.stream)) {
    options_.host = host_.data();
    options_.host_size = host_.size();
  }

  // Returns the seconds of a step, including its last copy out. The step has
  // all of HBM.
  double Seconds() {
    auto context = StreamContext::Create(options_);
    SLUICE_CHECK_OK(context.status());
    return bench::Seconds([&] {
      SLUICE_CHECK_OK(StreamedStep(**context, tensors_.weights,
                                   tensors_.gradients, tensors_.tokens,
                                   tensors_.tokens, kSequence)
                          .status());
      SLUICE_CHECK_OK(node_.engine().Drain());
    });
  }

 private:
  static StreamContext::Options Options(Node& node, int64_t chunk) {
    return {.stream = {.model = kModel,
                       .layout = stream::ChunkLayout(kSequence, chunk, 1)},
            .device = at::kCPU,
            .copies = &node.engine(),
            .allocator = &node.allocator()};
  }

  Node& node_;
  StepTensors& tensors_;
  StreamContext::Options options_;
  Memory host_;
};

std::vector<Entry> Measure() {
  Node node(GiB(1));
  StepTensors tensors(kModel, kSequence);
  std::vector<std::unique_ptr<Step>> steps;
  for (const int64_t chunk : kChunks) {
    steps.push_back(std::make_unique<Step>(node, tensors, chunk));
    steps.back()->Seconds();  // the first step is slower
  }
  std::vector<std::vector<double>> seconds(steps.size());
  // A check allows ten times the target, so one round suffices.
  const int rounds = IsCheck() ? 1 : kRounds;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < steps.size(); ++i) {
      seconds[i].push_back(steps[i]->Seconds());
    }
  }
  std::vector<Entry> entries;
  double best = 0, worst = 0;
  std::string all;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double median = Median(seconds[i]);
    best = i == 0 ? median : std::min(best, median);
    worst = std::max(worst, median);
    all +=
        fmt::format("{}{} in {:.2f} s", i == 0 ? "" : ", ", kChunks[i], median);
    entries.push_back({fmt::format("step at chunk {}", kChunks[i]),
                       median,
                       "s",
                       {},
                       true,
                       ""});
  }
  entries.push_back({"loss", worst / best, "worst/best chunk", 1.25, true,
                     fmt::format("a step of {} tokens, vocabulary {}, hidden "
                                 "{}, {} layers, chunks of {}",
                                 kSequence, kModel.vocab, kModel.hidden,
                                 kModel.layers, all)});
  return entries;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
