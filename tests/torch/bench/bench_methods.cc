// Measures the HBM that the baselines need, and the lengths that they reach,
// with a small Llama on one rank of 36 MiB.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <optional>

#include "client/torch/baseline/baseline.h"
#include "client/torch/exceptions.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_node.h"
#include "tests/torch/initial_tensors.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int64_t kStep = 64;  // rows

stream::ModelShape Model() {
  return {.layers = 4,
          .hidden = 128,
          .heads = 2,
          .kv_heads = 2,
          .ffn = 344,
          .vocab = 256};
}

// One rank of two: weights, gradients and its half of the moments.
class Rank {
 public:
  Rank()
      : node_(MiB(36)),
        weights_(InitialTensors(Model(), at::kFloat, at::kCPU, 1)),
        gradients_(ZeroTensors(Model(), at::kFloat, at::kCPU)),
        moments_(at::empty({static_cast<int64_t>(Model().parameters())},
                           at::kFloat)),
        states_(node_.allocator().stats().used) {}

  // Returns the peak of a step beyond the states, or nullopt if the step does
  // not fit.
  std::optional<Bytes> Peak(BaselineMethod method, int64_t rows) {
    HostInputs::Options inputs{.layers = Model().layers,
                               .rows = rows,
                               .hidden = Model().hidden,
                               .device = at::kCPU,
                               .copies = &node_.engine()};
    inputs.host_size = HostInputs::HostBytes(inputs);
    const Memory host(inputs.host_size);
    inputs.host = host.data();
    auto store = HostInputs::Create(inputs);
    SLUICE_CHECK_OK(store.status());
    node_.allocator().ResetPeak();
    const auto step = Step(method, rows, store->get());
    if (step.code() == absl::StatusCode::kResourceExhausted) return {};
    SLUICE_CHECK_OK(step);
    return node_.allocator().stats().peak - states_;
  }

  // Returns the rows of the longest sequence, a multiple of kStep.
  int64_t Longest(BaselineMethod method) {
    int64_t fits = 0, fails = 1;
    while (Peak(method, fails * kStep).has_value()) {
      fits = fails;
      fails *= 2;
    }
    while (fails - fits > 1) {
      const int64_t middle = (fits + fails) / 2;
      (Peak(method, middle * kStep).has_value() ? fits : fails) = middle;
    }
    return fits * kStep;
  }

 private:
  absl::Status Step(BaselineMethod method, int64_t rows, HostInputs* inputs) {
    return CatchStatus("a step", [&]() -> absl::Status {
      const at::Tensor tokens = at::zeros({rows}, at::kLong);
      return BaselineStep({.model = Model(),
                           .seq_len = rows,
                           .method = method,
                           .device = at::kCPU,
                           .inputs = inputs},
                          weights_, gradients_, tokens, tokens, rows)
          .status();
    });
  }

  Node node_;
  ModelTensors weights_, gradients_;
  at::Tensor moments_;
  Bytes states_;
};

double StatesPerRow(Rank& rank, BaselineMethod method) {
  constexpr int64_t kFew = 512, kMany = 1024;
  const auto few = rank.Peak(method, kFew), many = rank.Peak(method, kMany);
  SLUICE_CHECK(few.has_value() && many.has_value());
  const double more = static_cast<double>((*many - *few).count());
  return more / (kMany - kFew) / static_cast<double>(Model().hidden * 4);
}

std::vector<Entry> Measure() {
  Rank rank;
  const double alst = StatesPerRow(rank, BaselineMethod::kAlst);
  const double recompute = StatesPerRow(rank, BaselineMethod::kRecompute);
  const int64_t alst_rows = rank.Longest(BaselineMethod::kAlst);
  const int64_t recompute_rows = rank.Longest(BaselineMethod::kRecompute);
  return {
      {"alst per row", alst, "hidden states", 14, true,
       fmt::format("peak HBM over rows; recompute grows by {:.1f}", recompute)},
      {"alst longest",
       static_cast<double>(alst_rows) / static_cast<double>(recompute_rows),
       "x recompute", 2.3, false,
       fmt::format("{} rows against {} in 36 MiB, a small Llama", alst_rows,
                   recompute_rows)}};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
