#include <cmath>

#include "kernels/ops/gpu_kernels.h"
#include "tests/ops/on_gpu.h"
#include "tests/ops/token_cases.h"

namespace sluice::ops {
namespace {

using ::sluice::testing::StatusIs;

// The reference is the CPU form, which token_math_test compares with fp64.
class TokenKernelsOnGpu : public OnGpu<TokenKernels> {
 protected:
  template <typename T>
  static void ExpectSame(const std::vector<T>& gpu, const std::vector<T>& cpu,
                         const char* what) {
    double largest = 0;
    for (const T x : cpu) {
      largest = std::max(largest, std::fabs(double(Wide(x))));
    }
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_NEAR(Wide(gpu[i]), Wide(cpu[i]), 2 * kRounding<T> * largest)
          << what << " " << i;
    }
  }

  template <typename T>
  void Norms(int64_t rows, int64_t width, int gradients);
  template <typename In, typename Out>
  void Ropes(const RopeShape& shape, bool in_place);
  template <typename T>
  void Swiglus(int64_t n);
  template <typename T>
  void Softmaxes(int64_t rows, int64_t width);
};

template <typename T>
void TokenKernelsOnGpu::Norms(int64_t rows, int64_t width, int gradients) {
  // The rows are split into parts, the last of which has fewer rows.
  const RmsNormShape shape{rows, width, 1e-5f, 3};
  Draw draw(1);
  const auto x = draw.operator()<T>(rows * width, 3);
  const auto weight = draw.operator()<T>(width);
  std::vector<T> y(x.size()), expected(x.size());
  T* const y_there = Lay(y);
  Launch(shape, RmsNormTensors<T>{Lay(x), Lay(weight), y_there});
  Take(y_there, y);
  ExpectRestAsLaid();
  Compute(shape, RmsNormTensors<T>{x.data(), weight.data(), expected.data()});
  ExpectSame(y, expected, "y");

  std::vector<std::vector<T>> dy;
  auto dx = draw.operator()<T>(rows * width);
  std::vector<float> sums(static_cast<size_t>(shape.parts() * width), NAN);
  RmsNormGradients<T> there, here;
  there.x = Lay(x);
  there.weight = Lay(weight);
  for (int k = 0; k < gradients; ++k) {
    dy.push_back(draw.operator()<T>(rows * width));
    there.dy[k] = Lay(dy.back());
  }
  there.residual = there.dx = Lay(dx);
  there.weight_gradient = Lay(sums);
  Launch(shape, there);
  std::vector<T> dx_there(dx.size());
  std::vector<float> sums_there(sums.size());
  Take(there.dx, dx_there);
  Take(there.weight_gradient, sums_there);
  ExpectRestAsLaid();
  here = {.x = x.data(),
          .weight = weight.data(),
          .residual = dx.data(),
          .dx = dx.data(),
          .weight_gradient = sums.data()};
  for (int k = 0; k < gradients; ++k) {
    here.dy[k] = dy[static_cast<size_t>(k)].data();
  }
  Compute(shape, here);
  ExpectSame(dx_there, dx, "dx");
  ExpectSame(sums_there, sums, "weight's gradient");
}

// Covers rows that fill no vector, a block of one warp, and several pieces per
// thread.
TEST_F(TokenKernelsOnGpu, NormsAgreeWithTheCpu) {
  for (const int64_t width : {1, 20, 64, 1000, 2056}) {
    Norms<float>(5, width, 1);
    Norms<BFloat16>(7, width, 2);
  }
  Norms<BFloat16>(4, 512, 3);
}

TEST_F(TokenKernelsOnGpu, ARowTooLongForABlockIsRefused) {
  const auto driver = device::OpenCudaDriver();
  ASSERT_THAT(driver, sluice::testing::IsOk());
  const auto kernels = TokenKernels::Load(driver->get());
  ASSERT_THAT(kernels, sluice::testing::IsOk());
  EXPECT_THAT(
      kernels->Launch(RmsNormShape{1, 16385}, RmsNormTensors<BFloat16>(), {}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

template <typename In, typename Out>
void TokenKernelsOnGpu::Ropes(const RopeShape& shape, bool in_place) {
  Draw draw(2);
  const int64_t size = shape.rows * shape.heads * shape.dim;
  const int64_t table = shape.rows * (shape.dim / 2);
  const auto x = draw.operator()<In>(size);
  const auto cos = draw.operator()<float>(table),
             sin = draw.operator()<float>(table);
  std::vector<Out> y(x.size()), expected(x.size());
  const In* const x_there = Lay(x);
  Out* const y_there =
      in_place ? reinterpret_cast<Out*>(const_cast<In*>(x_there)) : Lay(y);
  Launch(shape, RopeTensors<In, Out>{x_there, Lay(cos), Lay(sin), y_there});
  Take(y_there, y);
  ExpectRestAsLaid();
  Compute(shape, RopeTensors<In, Out>{x.data(), cos.data(), sin.data(),
                                      expected.data()});
  ExpectSame(y, expected, "turned");
}

TEST_F(TokenKernelsOnGpu, RopeAgreesWithTheCpu) {
  for (const int64_t dim : {2, 20, 64, 128}) {
    Ropes<float, float>({7, 3, dim, false}, true);
    Ropes<BFloat16, BFloat16>({7, 3, dim, true}, true);
    Ropes<float, BFloat16>({7, 3, dim, true}, false);
  }
}

template <typename T>
void TokenKernelsOnGpu::Swiglus(int64_t n) {
  const SwigluShape shape{n};
  Draw draw(3);
  const auto gate = draw.operator()<T>(n, 4), up = draw.operator()<T>(n);
  auto dy = draw.operator()<T>(n);
  std::vector<T> y(gate.size()), expected(gate.size());
  T* const y_there = Lay(y);
  Launch(shape, SwigluTensors<T>{Lay(gate), Lay(up), y_there});
  Take(y_there, y);
  ExpectRestAsLaid();
  Compute(shape, SwigluTensors<T>{gate.data(), up.data(), expected.data()});
  ExpectSame(y, expected, "y");

  T* const dy_there = Lay(dy);
  T* const d_gate_there = Lay(y);
  Launch(shape, SwigluGradients<T>{dy_there, Lay(gate), Lay(up), d_gate_there,
                                   dy_there});
  std::vector<T> d_up(dy.size()), d_gate(dy.size());
  Take(dy_there, d_up);
  Take(d_gate_there, d_gate);
  ExpectRestAsLaid();
  Compute(shape, SwigluGradients<T>{dy.data(), gate.data(), up.data(),
                                    expected.data(), dy.data()});
  ExpectSame(d_gate, expected, "gate");
  ExpectSame(d_up, dy, "up");
}

TEST_F(TokenKernelsOnGpu, SwigluAgreesWithTheCpu) {
  for (const int64_t n : {1, 4099}) {
    Swiglus<float>(n);
    Swiglus<BFloat16>(n);
  }
}

template <typename T>
void TokenKernelsOnGpu::Softmaxes(int64_t rows, int64_t width) {
  const SoftmaxShape shape{rows, width, -100, 0.25f};
  Draw draw(4);
  auto logits = draw.operator()<T>(rows * width, 20);
  const auto labels = draw.Labels(rows, width);
  std::vector<float> loss(labels.size(), NAN);
  T* const logits_there = Lay(logits);
  float* const loss_there = Lay(loss);
  Launch(shape, SoftmaxTensors<T>{logits_there, Lay(labels), loss_there});
  auto gradient = logits;
  auto of_gpu = loss;
  Take(logits_there, gradient);
  Take(loss_there, of_gpu);
  ExpectRestAsLaid();
  Compute(shape, SoftmaxTensors<T>{logits.data(), labels.data(), loss.data()});
  ExpectSame(gradient, logits, "gradient");
  ExpectSame(of_gpu, loss, "loss");
}

// Covers fewer columns than threads, and several pieces per thread.
TEST_F(TokenKernelsOnGpu, SoftmaxAgreesWithTheCpu) {
  for (const int64_t width : {1, 30, 4100}) {
    Softmaxes<float>(6, width);
    Softmaxes<BFloat16>(6, width);
  }
}

}  // namespace
}  // namespace sluice::ops
