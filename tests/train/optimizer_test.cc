#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "client/train/optimizer/adamw.h"
#include "client/train/optimizer/flat_model.h"
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

// AdamW as its paper writes it, in fp64, element by element.
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
TEST(AdamW, Bf16WeightsMoveByTheirFp32Master) {
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

}  // namespace
}  // namespace sluice::train
