// Tests how `sluice-train check` judges errors, and tests its reference by
// finite differences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "client/train/check/check.h"
#include "client/train/checkpoint/checkpoint.h"

namespace sluice::train {
namespace {

at::Tensor Of(double value) { return at::full({2}, value, at::kDouble); }

TEST(CheckRule, ErrorsAreRelativeToTheParameterOrItsLayer) {
  const ReferenceResult truth{
      2.0,
      {{"layers.0.a", Of(10)}, {"layers.0.zero", Of(0)}, {"embed", Of(1)}}};
  ReferenceResult ours = truth;
  ours.gradients["embed"] = Of(1.001);
  ours.gradients["layers.0.zero"] = Of(0.001);  // relative to 1 % of a's 10
  const CheckReport report = Compare(ours, truth);
  EXPECT_NEAR(report.grad_max_rel_error, 0.01, 1e-12);
  EXPECT_EQ(report.worst_parameter, "layers.0.zero");
  EXPECT_EQ(report.loss_rel_error, 0);
}

TEST(CheckRule, NanIsTheWorstError) {
  const ReferenceResult truth{2.0, {{"a", Of(1)}, {"b", Of(1)}}};
  ReferenceResult ours = truth;
  ours.gradients["a"] = Of(std::nan(""));
  ours.gradients["b"] = Of(5);
  EXPECT_EQ(Compare(ours, truth).worst_parameter, "a");
  EXPECT_TRUE(std::isnan(Compare(ours, truth).grad_max_rel_error));
}

at::Tensor Pair(double x, double y) {
  at::Tensor t = at::full({2}, x, at::kDouble);
  t[1] = y;
  return t;
}

// `b` errs less than plain torch's worst parameter, `a`, but 300 times as much
// as plain torch's `b`.
TEST(CheckRule, InBf16EachParameterIsJudgedByItself) {
  const ReferenceResult truth{2.0, {{"a", Pair(1, 1)}, {"b", Pair(1, 1)}}};
  ReferenceResult plain = truth, ours = truth;
  plain.gradients["a"] = Pair(1.4, 0.6);
  plain.gradients["b"] = Pair(1.001, 0.999);
  ours.gradients["b"] = Pair(1.3, 0.7);
  const CheckReport report = JudgeBf16(ours, plain, truth);
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.norm_parameter, "b");
  EXPECT_NEAR(report.norm_over_plain, 300, 1e-6);
  EXPECT_TRUE(JudgeBf16(plain, plain, truth).ok);
}

// Rounding errors have both signs, so they change no scale.
TEST(CheckRule, InBf16AWrongScaleIsFoundBelowPlainTorchsNoise) {
  const ReferenceResult truth{2.0, {{"a", Pair(1, 1)}}};
  ReferenceResult plain = truth, ours = truth;
  plain.gradients["a"] = Pair(1.4, 0.6);
  ours.gradients["a"] = Pair(1.05, 1.05);
  const CheckReport report = JudgeBf16(ours, plain, truth);
  EXPECT_FALSE(report.ok);
  EXPECT_NEAR(report.scale_error, 0.05, 1e-12);
  EXPECT_LT(report.norm_over_plain, 1);
}

at::Tensor Four(double a, double b, double c, double d) {
  return at::tensor({a, b, c, d}, at::kDouble);
}

// The error keeps the limits of norm and scale, but lies in two elements.
TEST(CheckRule, InBf16TheLargestErrorIsJudgedToo) {
  const ReferenceResult truth{2.0, {{"a", Four(1, 1, 1, 1)}}};
  ReferenceResult plain = truth, ours = truth;
  plain.gradients["a"] = Four(1.4, 0.6, 1.4, 0.6);
  ours.gradients["a"] = Four(1.59, 0.41, 1, 1);
  EXPECT_TRUE(JudgeBf16(ours, plain, truth).ok);
  ours.gradients["a"] = Four(1.61, 0.39, 1, 1);
  const CheckReport report = JudgeBf16(ours, plain, truth);
  EXPECT_FALSE(report.ok);
  EXPECT_LT(report.norm_over_plain, 1.5);
  EXPECT_NEAR(report.grad_max_rel_error, 0.61, 1e-12);
  EXPECT_NEAR(report.plain_grad_max_rel_error, 0.4, 1e-12);
}

TEST(CheckRule, InBf16TheLossErrorIsLimitedByARoundingAndByPlainTorchsError) {
  const ReferenceResult truth{2.0, {{"a", Of(1)}}};
  ReferenceResult plain = truth, ours = truth;
  const auto fine = [&](double plains, double loss) {
    plain.loss = plains;
    ours.loss = loss;
    return JudgeBf16(ours, plain, truth).ok;
  };
  EXPECT_TRUE(fine(2, 2 * (1 + 0.0039)));
  EXPECT_FALSE(fine(2, 2 * (1 - 0.0040)));
  EXPECT_TRUE(fine(2 * 0.99, 2 * 1.0149));
  EXPECT_FALSE(fine(2 * 0.99, 2 * 1.0151));
  EXPECT_FALSE(fine(2, std::nan("")));
}

TEST(CheckRule, InFp32LossAndGradientsHaveFixedLimits) {
  const ReferenceResult truth{2.0, {{"a", Of(10)}}};
  const auto fine = [&](double loss_error, double gradient_error) {
    ReferenceResult ours = truth;
    ours.loss *= 1 + loss_error;
    ours.gradients["a"] = Of(10 * (1 + gradient_error));
    const CheckReport report = JudgeFp32(ours, truth);
    EXPECT_EQ(report.ok, report.why.empty());
    return report.ok;
  };
  EXPECT_TRUE(fine(0.99e-5, 0.99e-4));
  EXPECT_FALSE(fine(1.01e-5, 0));
  EXPECT_FALSE(fine(-1.01e-5, 0));
  EXPECT_FALSE(fine(0, 1.01e-4));
  EXPECT_FALSE(fine(0, -1.01e-4));
  EXPECT_FALSE(fine(std::nan(""), 0));
  EXPECT_FALSE(fine(0, std::nan("")));
}

// Without RoPE the gradient of K's bias is zero, so each kernel computes only
// rounding errors.
TEST(CheckRule, InBf16AZeroGradientIsNotJudgedByItsScale) {
  const ReferenceResult truth{
      2.0, {{"layers.0.w", Pair(1, 1)}, {"layers.0.k_bias", Pair(1e-17, 0)}}};
  ReferenceResult plain = truth, ours = truth;
  plain.gradients["layers.0.w"] = Pair(1.01, 0.99);
  plain.gradients["layers.0.k_bias"] = Pair(1e-4, 0);
  ours.gradients["layers.0.k_bias"] =
      Pair(0, 2e-3);  // rounded by another kernel
  EXPECT_TRUE(JudgeBf16(ours, plain, truth).ok);
  ours.gradients["layers.0.k_bias"] = Pair(0, 2.5e-3);
  EXPECT_FALSE(JudgeBf16(ours, plain, truth).ok);
}

class Oracle : public ::testing::TestWithParam<bool> {};

TEST_P(Oracle, GradientsAreTheSlopesOfTheLoss) {
  const bool llama = GetParam();
  stream::ModelShape config = llama ? stream::Llama({}) : stream::Gpt({});
  config.layers = 2;
  config.hidden = 8;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn = 6;
  config.vocab = 11;
  config.max_positions = llama ? 0 : 7;
  const ReferenceModel model{llama, 2, 8, 4, 2, 10000, 1e-5};
  std::map<std::string, at::Tensor> weights;
  for (const FlatEntry& e : FlatEntries(config)) {
    weights[e.name] = at::randn(e.shape, at::kDouble) * 0.5;
  }
  const at::Tensor ids = at::randint(0, 11, {7}, at::kLong);
  at::Tensor labels = at::randint(0, 11, {7}, at::kLong);
  labels[3] = -100;
  const ReferenceResult at_point =
      RunReference(model, weights, ids, labels, at::kDouble);
  for (const auto& [name, weight] : weights) {
    auto moved = weights;
    const double step = 1e-5;
    const at::Tensor direction = at::randn(weight.sizes(), at::kDouble);
    moved[name] = weight + direction * step;
    const double up = RunReference(model, moved, ids, labels, at::kDouble).loss;
    moved[name] = weight - direction * step;
    const double down =
        RunReference(model, moved, ids, labels, at::kDouble).loss;
    const double slope =
        (at_point.gradients.at(name) * direction).sum().item<double>();
    EXPECT_NEAR((up - down) / (2 * step), slope, 1e-6) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Llama" : "Gpt";
                         });

TEST(HfTensors, NameEveryParameterOnceWithItsShape) {
  for (const stream::ModelShape& config :
       {stream::Gpt({.max_positions = 9}), stream::Llama({})}) {
    int64_t elements = 0;
    std::set<std::string> names;
    for (const HfTensor& t : HfTensors(config)) {
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
      int64_t n = 1;
      for (const int64_t size : t.shape()) n *= size;
      elements += n;
    }
    EXPECT_EQ(elements, config.trained_parameters());
  }
}

}  // namespace
}  // namespace sluice::train
