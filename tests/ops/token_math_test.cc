#include "kernels/ops/token_math.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ops/token_cases.h"

namespace sluice::ops {
namespace {

using Numbers = std::vector<double>;

// Compares with the formulas in fp64, also at widths that fill no vector and no
// tile.
template <typename T>
class TokenMath : public ::testing::Test {
 protected:
  static void ExpectNear(const std::vector<T>& actual, const Numbers& expected,
                         const char* what) {
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::fabs(x));
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(Wide(actual[i]), expected[i], kRounding<T> * largest)
          << what << " " << i;
    }
  }
};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(TokenMath, Types);

constexpr float kEpsilon = 1e-5f;

double Scale(const Numbers& x, int64_t begin, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double value = x[static_cast<size_t>(begin + i)];
    squares += value * value;
  }
  return 1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon);
}

TYPED_TEST(TokenMath, RmsNormMatchesTheFormula) {
  using T = TypeParam;
  for (const int64_t width : {1, 20, 256, 1000}) {
    const RmsNormShape shape{5, width, kEpsilon};
    Draw draw(1);
    const auto x = draw.template operator()<T>(5 * width, 3);
    const auto weight = draw.template operator()<T>(width);
    std::vector<T> y(x.size());
    Compute(shape, RmsNormTensors<T>{x.data(), weight.data(), y.data()});
    const Numbers wide = Doubles(x), w = Doubles(weight);
    Numbers expected;
    for (int64_t i = 0; i < 5 * width; ++i) {
      expected.push_back(wide[static_cast<size_t>(i)] *
                         Scale(wide, i / width * width, width) *
                         w[static_cast<size_t>(i % width)]);
    }
    this->ExpectNear(y, expected, "y");
  }
}

// Covers one to three gradients, and a residual in the result's buffer.
TYPED_TEST(TokenMath, RmsNormBackwardMatchesTheDerivative) {
  using T = TypeParam;
  for (const int64_t width : {1, 20, 300}) {
    for (int count = 1; count <= kMostGradients; ++count) {
      constexpr int64_t kRows = 7;
      Draw draw(count);
      const auto x = draw.template operator()<T>(kRows * width, 3);
      const auto weight = draw.template operator()<T>(width);
      std::vector<std::vector<T>> dys;
      Numbers dy(x.size());
      RmsNormGradients<T> t;
      for (int k = 0; k < count; ++k) {
        dys.push_back(draw.template operator()<T>(kRows * width));
        for (size_t i = 0; i < dy.size(); ++i) dy[i] += Wide(dys.back()[i]);
      }
      for (int k = 0; k < count; ++k) t.dy[k] = dys[size_t(k)].data();
      auto dx = draw.template operator()<T>(kRows * width);
      const Numbers residual = Doubles(dx), wide = Doubles(x),
                    w = Doubles(weight);
      std::vector<float> sums(static_cast<size_t>(width), NAN);
      t.x = x.data();
      t.weight = weight.data();
      t.residual = t.dx = dx.data();
      t.weight_gradient = sums.data();
      Compute(RmsNormShape{kRows, width, kEpsilon, kRows}, t);

      Numbers expected(x.size()), of_weight(static_cast<size_t>(width));
      for (int64_t row = 0; row < kRows; ++row) {
        const double scale = Scale(wide, row * width, width);
        double mean = 0;
        for (int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<size_t>(row * width + i);
          const auto column = static_cast<size_t>(i);
          mean += dy[at] * w[column] * wide[at] * scale / double(width);
          of_weight[column] += dy[at] * wide[at] * scale;
        }
        for (int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<size_t>(row * width + i);
          expected[at] =
              (dy[at] * w[static_cast<size_t>(i)] - wide[at] * scale * mean) *
                  scale +
              residual[at];
        }
      }
      this->ExpectNear(dx, expected, "dx");
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_NEAR(sums[i], of_weight[i], 2e-5) << i;
      }
    }
  }
}

TYPED_TEST(TokenMath, RopeRotatesPairsInPlaceAndItsInverseRotatesBack) {
  using T = TypeParam;
  for (const int64_t dim : {2, 20, 128}) {
    const RopeShape shape{3, 2, dim};
    Draw draw(3);
    auto x = draw.template operator()<T>(6 * dim);
    const auto angles = draw.template operator()<float>(3 * (dim / 2), 3);
    std::vector<float> cos, sin;
    for (const float angle : angles) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    const Numbers before = Doubles(x);
    Numbers expected(before.size());
    for (int64_t head = 0; head < 6; ++head) {
      for (int64_t i = 0; i < dim / 2; ++i) {
        const auto a = static_cast<size_t>(head * dim + i);
        const size_t b = a + static_cast<size_t>(dim / 2);
        const auto at = static_cast<size_t>(head / 2 * (dim / 2) + i);
        expected[a] = before[a] * cos[at] - before[b] * sin[at];
        expected[b] = before[b] * cos[at] + before[a] * sin[at];
      }
    }
    Compute(shape,
            RopeTensors<T, T>{x.data(), cos.data(), sin.data(), x.data()});
    this->ExpectNear(x, expected, "turned");
    RopeShape back = shape;
    back.inverse = true;
    // The backward pass rounds fp32 sums to the model's type.
    const std::vector<float> sums(expected.begin(), expected.end());
    Compute(back, RopeTensors<float, T>{sums.data(), cos.data(), sin.data(),
                                        x.data()});
    this->ExpectNear(x, before, "turned back");
  }
}

TYPED_TEST(TokenMath, SwigluMatchesTheFormulaAndItsDerivative) {
  using T = TypeParam;
  const int64_t n = 1003;
  Draw draw(4);
  const auto gate = draw.template operator()<T>(n, 4);
  const auto up = draw.template operator()<T>(n);
  auto dy = draw.template operator()<T>(n);
  std::vector<T> y(size_t{n}), d_gate(size_t{n});
  Compute(SwigluShape{n}, SwigluTensors<T>{gate.data(), up.data(), y.data()});
  Numbers expected, of_gate, of_up;
  for (size_t i = 0; i < size_t{n}; ++i) {
    const double g = Wide(gate[i]), u = Wide(up[i]), d = Wide(dy[i]);
    const double s = 1 / (1 + std::exp(-g));
    expected.push_back(g * s * u);
    of_gate.push_back(d * u * s * (1 + g * (1 - s)));
    of_up.push_back(d * g * s);
  }
  this->ExpectNear(y, expected, "y");
  Compute(SwigluShape{n}, SwigluGradients<T>{dy.data(), gate.data(), up.data(),
                                             d_gate.data(), dy.data()});
  this->ExpectNear(d_gate, of_gate, "gate");
  this->ExpectNear(dy, of_up, "up");
}

TYPED_TEST(TokenMath, SoftmaxGradientMatchesTheFormula) {
  using T = TypeParam;
  for (const int64_t width : {1, 30, 1000}) {
    constexpr int64_t kRows = 6;
    Draw draw(5);
    auto logits = draw.template operator()<T>(kRows * width, 20);
    const auto labels = draw.Labels(kRows, width);
    const Numbers before = Doubles(logits);
    std::vector<float> loss(size_t{kRows}, NAN);
    Compute(SoftmaxShape{kRows, width, -100, 0.25f},
            SoftmaxTensors<T>{logits.data(), labels.data(), loss.data()});
    Numbers expected(before.size());
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = before.begin() + row * width;
      const auto label = labels[static_cast<size_t>(row)];
      if (label == -100) {
        EXPECT_EQ(loss[static_cast<size_t>(row)], 0);
        continue;
      }
      const double greatest = *std::max_element(begin, begin + width);
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += std::exp(begin[i] - greatest);
      for (int64_t i = 0; i < width; ++i) {
        const double p = std::exp(begin[i] - greatest) / sum;
        expected[static_cast<size_t>(row * width + i)] =
            (p - (i == label ? 1 : 0)) * 0.25;
      }
      const double exact = std::log(sum) + greatest - begin[label];
      EXPECT_NEAR(loss[static_cast<size_t>(row)], exact, 1e-5 * (1 + exact));
    }
    this->ExpectNear(logits, expected, "gradient");
  }
}

TYPED_TEST(TokenMath, ANanReachesTheResult) {
  using T = TypeParam;
  std::vector<T> x(20, Narrow<T>(1)), y(20);
  const std::vector<T> weight(20, Narrow<T>(1));
  x[7] = Narrow<T>(NAN);
  Compute(RmsNormShape{1, 20, kEpsilon},
          RmsNormTensors<T>{x.data(), weight.data(), y.data()});
  EXPECT_TRUE(std::isnan(Wide(y[0])));
  Compute(SwigluShape{20}, SwigluTensors<T>{x.data(), weight.data(), y.data()});
  EXPECT_TRUE(std::isnan(Wide(y[7])));
  EXPECT_FALSE(std::isnan(Wide(y[8])));
  const std::vector<int64_t> label = {2};
  float loss = 0;
  Compute(SoftmaxShape{1, 20, -100, 1},
          SoftmaxTensors<T>{x.data(), label.data(), &loss});
  EXPECT_TRUE(std::isnan(loss));
  EXPECT_TRUE(std::isnan(Wide(x[0])));
}

TYPED_TEST(TokenMath, EmptyShapesAreAccepted) {
  using T = TypeParam;
  Compute(RmsNormShape{0, 8, kEpsilon}, RmsNormTensors<T>());
  Compute(RopeShape{0, 2, 8}, RopeTensors<T, T>());
  Compute(SwigluShape{}, SwigluTensors<T>());
  Compute(SwigluShape{}, SwigluGradients<T>());
  Compute(SoftmaxShape{0, 8}, SoftmaxTensors<T>());
}

}  // namespace
}  // namespace sluice::ops
