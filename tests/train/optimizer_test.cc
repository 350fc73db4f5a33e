#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/train/optimizer/adamw.h"
#include "tests/support/optimizer_collectives.h"
#include "tests/support/status_matchers.h"

namespace sluice::train {
namespace {

using ::sluice::testing::IsOk;

const stream::ModelShape kSizes = {.layers = 2,
                                   .hidden = 16,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .ffn = 20,
                                   .vocab = 30,
                                   .max_positions = 12};
stream::ModelShape SmallGpt() { return stream::Gpt(kSizes); }
stream::ModelShape SmallLlama() { return stream::Llama(kSizes); }

TEST(FlatModel, TensorsTileTheBufferWithoutGaps) {
  for (const stream::ModelShape& config : {SmallGpt(), SmallLlama()}) {
    FlatModel model(config, at::kFloat, at::kCPU);
    EXPECT_EQ(model.size(), config.trained_parameters());
    model.flat().copy_(at::arange(model.size(), at::kFloat));
    int64_t next = 0;
    for (const auto& t : runtime::NamedTensors(config, model.tensors())) {
      EXPECT_EQ(t.tensor->flatten()[0].item<float>(), next) << t.name;
      next += t.tensor->numel();
    }
    EXPECT_EQ(next, model.size());
  }
}

TEST(FlatModel, OnlyMatricesDecay) {
  for (const FlatEntry& e : FlatEntries(SmallGpt())) {
    const bool matrix = e.name.find("bias") == std::string::npos &&
                        e.name.find("norm") == std::string::npos;
    EXPECT_EQ(e.decays, matrix) << e.name;
  }
}

TEST(LearningRate, WarmsUpLinearlyThenStays) {
  const AdamWOptions options{.lr = 1.0, .warmup = 4};
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(options, 3), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 100), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate({.lr = 1.0, .warmup = 0}, 0), 1.0);
}

// AdamW as in its paper, in fp64, element by element.
struct PaperAdamW {
  AdamWOptions o;
  std::vector<double> p, m, v;
  void Step(int64_t t, const std::vector<double>& g,
            const std::vector<bool>& decays) {
    const double lr = LearningRate(o, t - 1);
    for (size_t i = 0; i < p.size(); ++i) {
      if (decays[i]) p[i] -= lr * o.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      const double mean = m[i] / (1 - std::pow(o.beta1, t));
      const double square = v[i] / (1 - std::pow(o.beta2, t));
      p[i] -= lr * mean / (std::sqrt(square) + o.epsilon);
    }
  }
};

TEST(AdamW, FollowsThePaperWithClippingAndDecay) {
  const stream::ModelShape config = SmallGpt();
  FlatModel weights(config, at::kFloat, at::kCPU),
      gradients(config, at::kFloat, at::kCPU);
  runtime::HostStage stage;
  ASSERT_TRUE(weights.Initialize(config, 7, stage).ok());
  const AdamWOptions options{.lr = 1e-2, .warmup = 2, .clip = 0.5};
  AdamW adamw(options, &weights, &gradients, nullptr);
  const size_t n = static_cast<size_t>(weights.size());
  PaperAdamW paper{options, {}, std::vector<double>(n), std::vector<double>(n)};
  std::vector<bool> decays(n);
  for (const FlatEntry& e : weights.entries()) {
    for (int64_t i = 0; i < e.size; ++i) decays[e.offset + i] = e.decays;
  }
  const float* w = weights.flat().data_ptr<float>();
  paper.p.assign(w, w + n);
  for (int64_t step = 0; step < 5; ++step) {
    gradients.flat().copy_(at::rand({weights.size()}, at::kFloat) - 0.3);
    const float* g = gradients.flat().data_ptr<float>();
    std::vector<double> exact(g, g + n);
    double squares = 0;
    for (const double x : exact) squares += x * x;
    SLUICE_ASSERT_OK_AND_ASSIGN(const double norm, adamw.ReduceGradients());
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-4 * norm);
    const double scale = options.clip / (std::sqrt(squares) + 1e-6);
    for (double& x : exact) x *= scale;
    ASSERT_THAT(adamw.Update(step, norm), IsOk());
    paper.Step(step + 1, exact, decays);
  }
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(w[i], paper.p[i], 2e-6) << i;
}

// bf16 weights alone would lose updates below half a unit in the last place.
TEST(AdamW, Bf16WeightsFollowTheirFp32Master) {
  const stream::ModelShape config = SmallLlama();
  FlatModel weights(config, at::kBFloat16, at::kCPU),
      gradients(config, at::kFloat, at::kCPU);
  weights.flat().fill_(1.0);
  const AdamWOptions options{
      .lr = 1e-4, .warmup = 0, .clip = 0, .weight_decay = 0};
  AdamW adamw(options, &weights, &gradients, nullptr);
  for (int64_t step = 0; step < 100; ++step) {
    gradients.flat().fill_(1.0);
    ASSERT_THAT(adamw.Update(step, 1), IsOk());
  }
  EXPECT_NEAR(adamw.states().master[0].item<float>(), 0.99, 1e-4);
  EXPECT_NEAR(weights.flat()[0].item<float>(), 0.99, 4e-3);
}

// Rank 1 of `ranks`. Records the calls; its collectives change nothing.
class Recorder final : public runtime::Collectives {
 public:
  explicit Recorder(int ranks) : ranks_(ranks) {}
  std::string calls;  // one letter per call, see Note

  int rank() const override { return 1; }
  int world_size() const override { return ranks_; }
  absl::Status AllToAll(const at::Tensor&, const std::vector<int64_t>&,
                        const at::Tensor&,
                        const std::vector<int64_t>&) override {
    return absl::UnimplementedError("");
  }
  absl::Status SumAll(at::Tensor&) override { return Note('n'); }
  absl::Status SumTo(at::Tensor&, int) override { return Note('r'); }
  absl::Status Broadcast(at::Tensor&, int) override { return Note('b'); }
  absl::Status BeginSumScatter(at::Tensor& t) override {
    EXPECT_EQ(t.numel() % ranks_, 0);
    return Note('s');
  }
  absl::Status BeginGather(at::Tensor& t) override {
    EXPECT_EQ(t.numel() % ranks_, 0);
    return Note('g');
  }
  absl::Status AwaitBegun() override { return Note('.'); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}

 private:
  absl::Status Note(char call) {
    calls += call;
    return absl::OkStatus();
  }
  const int ranks_;
};

TEST(AdamW, CallsAsManyCollectivesAsTheFormulaSays) {
  for (const int ranks : {2, 3, 8}) {
    for (const stream::ModelShape& shape : {SmallGpt(), SmallLlama()}) {
      Recorder recorder(ranks);
      FlatModel weights(shape, at::kFloat, at::kCPU),
          gradients(shape, at::kFloat, at::kCPU);
      AdamW adamw({}, &weights, &gradients, &recorder);
      SLUICE_ASSERT_OK_AND_ASSIGN(const double norm, adamw.ReduceGradients());
      ASSERT_THAT(adamw.Update(0, norm), IsOk());
      ASSERT_THAT(adamw.FinishUpdate(), IsOk());
      std::erase(recorder.calls, '.');
      EXPECT_EQ(std::ssize(recorder.calls),
                sluice::testing::OptimizerCollectives(shape, ranks))
          << recorder.calls;
    }
  }
}

// The parts are the embedding, two layers and the head. Each is one even round.
TEST(AdamW, ReducesDuringBackwardAndGathersDuringForward) {
  const stream::ModelShape shape = stream::Llama({.layers = 2,
                                                  .hidden = 64,
                                                  .heads = 4,
                                                  .kv_heads = 2,
                                                  .ffn = 96,
                                                  .vocab = 256});
  Recorder recorder(2);
  FlatModel weights(shape, at::kFloat, at::kCPU),
      gradients(shape, at::kFloat, at::kCPU);
  AdamW adamw({}, &weights, &gradients, &recorder);
  const auto take = [&] { return std::exchange(recorder.calls, ""); };
  ASSERT_THAT(adamw.PartIsDone(3), IsOk());
  EXPECT_EQ(take(), "");  // a later sequence adds to the gradients
  adamw.BeginLastSequence();
  for (const int part : {3, 2, 1, 0}) {
    ASSERT_THAT(adamw.PartIsDone(part), IsOk());
    EXPECT_EQ(take(), "s") << part;
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const double norm, adamw.ReduceGradients());
  EXPECT_EQ(take(), ".n");
  ASSERT_THAT(adamw.Update(0, norm), IsOk());
  EXPECT_EQ(take(), "");
  // While forward computes on a part, the next part is gathered.
  const std::vector<std::string> expected = {"g.g", ".g", ".g", "."};
  for (int64_t part = 0; part < std::ssize(expected); ++part) {
    ASSERT_THAT(adamw.AwaitPart(part), IsOk());
    EXPECT_EQ(take(), expected[static_cast<size_t>(part)]) << part;
  }
  ASSERT_THAT(adamw.FinishUpdate(), IsOk());
  EXPECT_EQ(take(), "");
}

}  // namespace
}  // namespace sluice::train
