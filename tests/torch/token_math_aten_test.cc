// Compares token-local math on a test's device (test_node.h) with ATen's
// separate operators, as plain torch runs them: the results and, on the CPU,
// the time.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <functional>

#include "client/torch/math/token_math.h"
#include "gtest/gtest.h"
#include "tests/torch/test_node.h"

namespace sluice::runtime {
namespace {

constexpr double kEpsilon = 1e-5;

at::Tensor There(const at::Tensor& t) { return t.to(TestDevice()); }
at::Tensor Drawn(at::IntArrayRef sizes, at::ScalarType type) {
  return There(at::randn(sizes).to(type));
}

// Allows an error relative to the largest value: in bf16, that of several
// roundings.
void ExpectNear(const at::Tensor& actual, const at::Tensor& expected,
                const char* what) {
  const at::Tensor a = actual.cpu().to(at::kDouble);
  const at::Tensor b = expected.cpu().to(at::kDouble);
  const double tolerance = actual.scalar_type() == at::kFloat ? 2e-6 : 1.6e-2;
  EXPECT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_LE((a - b).abs().max().item<double>(),
            tolerance * b.abs().max().item<double>())
      << what;
}

// Returns the seconds of the fastest run.
double Seconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

struct Ways {
  std::function<void()> ours, aten;
};
// A fake GPU's time says nothing.
void ExpectNotSlower(const char* what, const Ways& ways) {
  if (OnCuda()) return;
  const double ours = Seconds(ways.ours), aten = Seconds(ways.aten);
  std::printf("%-20s %7.0f us, by ATen's operators %7.0f us\n", what,
              ours * 1e6, aten * 1e6);
  EXPECT_LE(ours, aten) << what;
}

// --- by ATen's operators -----------------------------------------------------
at::Tensor Scale(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, at::kFloat)
      .square_()
      .div_(double(x.size(1)))
      .add_(kEpsilon)
      .rsqrt_();
}
at::Tensor AtenNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x.to(at::kFloat).mul(Scale(x)).mul_(weight).to(x.scalar_type());
}
at::Tensor AtenNormBackward(const at::Tensor& x, const at::Tensor& dy,
                            const at::Tensor& weight, at::Tensor& gradient) {
  const at::Tensor scale = Scale(x), normed = x.to(at::kFloat) * scale;
  gradient.add_(at::sum(dy * normed, {0}));
  at::Tensor dx = dy * weight;
  const at::Tensor mean =
      at::sum(dx * normed, {-1}, /*keepdim=*/true).div_(double(x.size(1)));
  return dx.addcmul_(normed, mean, -1).mul_(scale);
}
void AtenRope(at::Tensor& x, const RopeTables& tables) {
  const int64_t half = x.size(2) / 2;
  at::Tensor first = x.narrow(2, 0, half), second = x.narrow(2, half, half);
  const at::Tensor a = first.to(at::kFloat), b = second.to(at::kFloat);
  const at::Tensor turned = (b * tables.cos).addcmul_(a, tables.sin);
  first.copy_((a * tables.cos).addcmul_(b, tables.sin, -1));
  second.copy_(turned);
}
at::Tensor AtenLogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                             double scale, at::Tensor& loss) {
  at::Tensor log_p = at::_log_softmax(logits.to(at::kFloat), 1, false);
  const at::Tensor column = labels.unsqueeze(1);
  const at::Tensor picked = log_p.gather(1, column);
  loss.sub_(at::sum(picked, at::kDouble));
  return log_p.exp_()
      .scatter_add_(1, column, at::full_like(picked, -1))
      .mul_(scale)
      .to(logits.scalar_type());
}

class TokenMathOf : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // A fake GPU is slow.
  const int64_t rows_ = OnCuda() ? 20 : 300;
  const int64_t width_ = OnCuda() ? 72 : 1024;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, TokenMathOf,
                         ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param));
                         });

TEST_P(TokenMathOf, RmsNormMatchesAten) {
  const at::Tensor x = Drawn({rows_, width_}, GetParam());
  const at::Tensor weight = Drawn({width_}, GetParam()), none;
  const NormWeights norm = {stream::NormKind::kRmsNorm, weight, none, kEpsilon};
  ExpectNear(NormForward(x, norm), AtenNorm(x, weight), "y");
  ExpectNotSlower("rms norm", {[&] { NormForward(x, norm); },
                               [&] { AtenNorm(x, weight); }});
}

TEST_P(TokenMathOf, RmsNormBackwardOfThreePartsMatchesAten) {
  const at::Tensor x = Drawn({rows_, width_}, GetParam());
  const at::Tensor weight = Drawn({width_}, GetParam()), none;
  const NormWeights norm = {stream::NormKind::kRmsNorm, weight, none, kEpsilon};
  std::vector<at::Tensor> dy;
  for (int i = 0; i < 3; ++i) dy.push_back(Drawn(x.sizes(), GetParam()));
  const at::Tensor residual = Drawn(x.sizes(), GetParam());
  at::Tensor gradient = There(at::rand({width_})), no_bias;
  at::Tensor expected_gradient = gradient.clone();
  const at::Tensor dx = at::empty_like(x);
  const auto aten = [&] {
    at::Tensor sum = dy[0].to(at::kFloat, false, /*copy=*/true);
    sum.add_(dy[1]).add_(dy[2]);
    return AtenNormBackward(x, sum, weight, expected_gradient)
        .add_(residual)
        .to(GetParam());
  };
  const auto ours = [&] {
    NormBackward(x, dy, residual, norm, {gradient, no_bias}, dx);
  };
  ours();
  ExpectNear(dx, aten(), "dx");
  ExpectNear(gradient, expected_gradient, "weight's gradient");
  ExpectNotSlower("rms norm backward", {ours, aten});
}

TEST_P(TokenMathOf, RopeMatchesAten) {
  const RopeTables tables =
      MakeRopeTables(1000, rows_, width_ / 4, 10000, TestDevice());
  at::Tensor x = Drawn({rows_, 4, width_ / 4}, GetParam());
  at::Tensor expected = x.clone();
  AtenRope(expected, tables);
  ApplyRope(x, tables, /*inverse=*/false, GetParam());
  ExpectNear(x, expected, "turned");
  ExpectNotSlower("rope", {[&] { ApplyRope(x, tables, false, GetParam()); },
                           [&] { AtenRope(expected, tables); }});
}

TEST_P(TokenMathOf, SwigluMatchesAten) {
  const at::Tensor gate = Drawn({rows_, width_}, GetParam()) * 3;
  const at::Tensor up = Drawn({rows_, width_}, GetParam());
  const at::Tensor drawn = Drawn({rows_, width_}, GetParam());
  ExpectNear(ActivationForward(gate, up), at::silu(gate).mul_(up), "y");
  ExpectNotSlower("swiglu", {[&] { ActivationForward(gate, up); },
                             [&] { at::silu(gate).mul_(up); }});
  const at::Tensor gradient = drawn.clone();
  const ActivationGradients d = ActivationBackward(gradient, gate, up);
  ExpectNear(d.gate, at::silu_backward(drawn * up, gate), "gate");
  ExpectNear(d.up, at::silu(gate).mul_(drawn), "up");
  ExpectNotSlower("swiglu backward",
                  {[&] { ActivationBackward(gradient, gate, up); },
                   [&] {
                     at::silu_backward(drawn * up, gate);
                     at::silu(gate).mul_(drawn);
                   }});
}

TEST_P(TokenMathOf, SoftmaxGradientMatchesAten) {
  const at::Tensor drawn = Drawn({rows_, width_}, GetParam()) * 5;
  const at::Tensor labels = There(at::randint(width_, {rows_}, at::kLong));
  at::Tensor loss = There(at::zeros({}, at::kDouble)), expected = loss.clone();
  const at::Tensor logits = drawn.clone();
  LogitGradient(logits, labels, 0.01, loss);
  ExpectNear(logits, AtenLogitGradient(drawn, labels, 0.01, expected),
             "gradient");
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(),
              1e-6 * expected.item<double>());
  ExpectNotSlower("softmax gradient",
                  {[&] { LogitGradient(logits, labels, 0.01, loss); },
                   [&] { AtenLogitGradient(drawn, labels, 0.01, expected); }});
}

}  // namespace
}  // namespace sluice::runtime
