// Tests torch's CUDA tensors in memory of the fake driver: real at::kCUDA
// tensors, c10's own guards and streams, and ATen's CPU kernels as CUDA
// kernels.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/torch/kernel.h"
#include "tests/fake_cuda/torch/piece_allocator.h"
#include "tests/fake_cuda/torch/region.h"

namespace sluice::fake_cuda {
namespace {

using ::testing::HasSubstr;

const at::Device kGpu(at::kCUDA, 0);

class FakeTorch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    driver_ = Ok(device::OpenCudaDriver());
    memory_ = std::make_unique<Region>(
        driver_.get(), device::Placement::Gpu(DeviceIndex(0)), MiB(32));
    pinned_ = std::make_unique<Region>(
        driver_.get(), device::Placement::Host(NumaIndex(0)), MiB(4));
    PieceAllocator::Install(memory_->address,
                            static_cast<size_t>(MiB(32).count()));
  }
  static void TearDownTestSuite() {
    pinned_.reset();
    memory_.reset();
    driver_.reset();
  }

  void SetUp() override {
    compute_ = driver_->ComputeStream(DeviceIndex(0));
    copies_ = Ok(driver_->CreateStream(DeviceIndex(0)));
    c10::cuda::setCurrentCUDAStream(Of(compute_));
    at::manual_seed(1);
  }
  void TearDown() override {
    Ok(driver_->SynchronizeStream(compute_));
    Ok(driver_->SynchronizeStream(copies_));
    Ok(driver_->DestroyStream(copies_));
    EXPECT_EQ(Findings(), "");
  }

  static c10::cuda::CUDAStream Of(device::Stream stream) {
    return c10::cuda::getStreamFromExternal(
        static_cast<cudaStream_t>(Ok(driver_->NativeStream(stream))), 0);
  }
  static std::string Findings() {
    std::string findings;
    fake_cuda_take_findings(findings);
    return findings;
  }
  static void ExpectSame(const at::Tensor& gpu, const at::Tensor& cpu) {
    ASSERT_TRUE(gpu.is_cuda());
    EXPECT_TRUE(at::equal(gpu.cpu(), cpu))
        << "GPU and CPU differ by up to " << (gpu.cpu() - cpu).abs().max();
  }

  static std::unique_ptr<device::Driver> driver_;
  static std::unique_ptr<Region> memory_, pinned_;
  device::Stream compute_, copies_;
};
std::unique_ptr<device::Driver> FakeTorch::driver_;
std::unique_ptr<Region> FakeTorch::memory_, FakeTorch::pinned_;

// Blocks a stream while the object lives.
class Blocked {
 public:
  explicit Blocked(c10::cuda::CUDAStream stream) {
    TORCH_CHECK(
        fake_cuda_run(stream.stream(), "a block", {}, [go = go_](const Views&) {
          while (!*go) usleep(1000);
        }) == 0);
  }
  ~Blocked() { *go_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> go_ =
      std::make_shared<std::atomic<bool>>(false);
};

TEST_F(FakeTorch, OperatorsGiveTheBitsOfTheCpu) {
  const at::Tensor a = at::randn({96, 96}), b = at::randn({96, 96});
  const at::Tensor x = a.to(kGpu), y = b.to(kGpu);
  ExpectSame(at::mm(x, y), at::mm(a, b));
  ExpectSame(at::softmax(x, 1), at::softmax(a, 1));
  ExpectSame(at::silu(x), at::silu(a));
  ExpectSame((x * 2 + y).t().narrow(0, 3, 40).sum(1, true),
             (a * 2 + b).t().narrow(0, 3, 40).sum(1, true));
  ExpectSame(x.to(at::kBFloat16), a.to(at::kBFloat16));
  at::Tensor out = at::empty({0}, x.options());
  at::mm_out(out, x, y);
  ExpectSame(out, at::mm(a, b));
  at::Tensor sums = at::zeros({96, 96}, x.options());
  sums.index_add_(0, at::empty({0}, x.options().dtype(at::kLong)),
                  x.narrow(0, 0, 0));  // as on a rank without rows
  EXPECT_EQ(sums.abs().sum().item<float>(), 0);
  at::Tensor part = x.narrow(1, 8, 16);
  part.mul_(3).add_(at::scalar_tensor(0.5));
  ExpectSame(x.narrow(1, 8, 16), a.narrow(1, 8, 16) * 3 + 0.5);
  ExpectSame(x.narrow(1, 24, 72), a.narrow(1, 24, 72));
}

TEST_F(FakeTorch, OperatorsOnListsOrWithoutMetaKernelGiveTheBitsOfTheCpu) {
  const at::Tensor table = at::randn({10, 8});
  const at::Tensor rows = at::randint(10, {32}, at::kLong);
  const at::Tensor table_on_gpu = table.to(kGpu), rows_on_gpu = rows.to(kGpu);
  ExpectSame(at::embedding(table_on_gpu, rows_on_gpu),
             at::embedding(table, rows));
  at::Tensor to = at::empty({32, 8}, table_on_gpu.options());
  at::index_select_out(to, table_on_gpu, 0, rows_on_gpu);
  ExpectSame(to, at::index_select(table, 0, rows));
  ExpectSame(at::cat({table_on_gpu, table_on_gpu}), at::cat({table, table}));
  std::vector<at::Tensor> cpu, gpu;
  for (int i = 0; i < 5; ++i) {
    cpu.push_back(at::rand({64}));
    gpu.push_back(cpu.back().to(kGpu));
  }
  const auto adamw = [](std::vector<at::Tensor>& t, const at::Tensor& step) {
    at::_fused_adamw_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {step}, 1e-3, 0.9,
                      0.95, 0.1, 1e-8, false, false);
  };
  adamw(cpu, at::ones({}));
  adamw(gpu, at::ones({}).to(kGpu));
  ExpectSame(gpu[0], cpu[0]);
  ExpectSame(gpu[3], cpu[3]);
}

TEST_F(FakeTorch, AutogradGivesTheGradientsOfTheCpu) {
  const at::Tensor w = at::randn({16, 16}), x = at::randn({8, 16});
  const auto gradient = [&](at::Device device) {
    at::Tensor leaf = w.to(device).detach().requires_grad_(true);
    at::silu(at::mm(x.to(device), leaf)).sum().backward();
    return leaf.grad();
  };
  const at::Tensor on_gpu = gradient(kGpu);
  ASSERT_TRUE(on_gpu.is_cuda());
  // The two gradients differ by 4.8e-7, for an unknown reason.
  EXPECT_TRUE(at::allclose(on_gpu.cpu(), gradient(at::kCPU), 1e-5, 1e-5));
}

TEST_F(FakeTorch, IssuingDoesNotWaitForTheGpu) {
  const at::Tensor a = at::randn({32, 32});
  const at::Tensor x = a.to(kGpu);
  at::Tensor sum = at::zeros({32, 32}, x.options());
  at::Tensor expected = at::zeros({32, 32});
  {
    const Blocked block(Of(compute_));
    for (int i = 0; i < 20; ++i) sum.add_(at::softmax(at::mm(x, x), 1));
    EXPECT_FALSE(Of(compute_).query());
  }
  for (int i = 0; i < 20; ++i) expected.add_(at::softmax(at::mm(a, a), 1));
  ExpectSame(sum, expected);
}

// The race is found by the order of the calls alone: no operation is delayed.
TEST_F(FakeTorch, AKernelThatDoesNotWaitForACopyIsFound) {
  for (const bool waits : {true, false}) {
    const at::Tensor slot = at::empty({1024}, at::TensorOptions().device(kGpu));
    Ok(driver_->SynchronizeStream(compute_));
    Ok(driver_->CopyAsync(static_cast<device::Address>(slot.data_ptr()),
                          pinned_->address, Bytes(4096),
                          device::CopyDirection::kHostToDevice, copies_));
    const device::Event arrived = Ok(driver_->CreateEvent());
    Ok(driver_->RecordEvent(arrived, copies_));
    if (waits) Ok(driver_->StreamWaitEvent(compute_, arrived));
    const at::Tensor sum = slot.sum();
    Ok(driver_->SynchronizeStream(copies_));
    Ok(driver_->DestroyEvent(arrived));
    const std::string findings = Findings();
    if (waits) {
      EXPECT_EQ(findings, "");
    } else {
      EXPECT_THAT(findings, HasSubstr("race: read after write: aten::sum"));
    }
  }
}

// The product lays two ring buffers side by side in one tensor's columns.
TEST_F(FakeTorch, ColumnsOfOneTensorRaceOnlyIfTheyOverlap) {
  const at::Tensor whole =
      at::zeros({16, 64}, at::TensorOptions().device(kGpu));
  Ok(driver_->SynchronizeStream(compute_));
  whole.narrow(1, 0, 32).add_(1);
  {
    const c10::cuda::CUDAStream other = Of(copies_);
    c10::cuda::setCurrentCUDAStream(other);
    whole.narrow(1, 32, 32).add_(2);
    EXPECT_EQ(Findings(), "");
    whole.narrow(1, 31, 2).add_(3);
    EXPECT_THAT(Findings(), HasSubstr("race"));
    c10::cuda::setCurrentCUDAStream(Of(compute_));
  }
}

TEST_F(FakeTorch, TheHostCannotReadAGpusMemory) {
  const at::Tensor x = at::ones({4}).to(kGpu);
  const volatile float* const address = x.data_ptr<float>();
  EXPECT_EXIT(_exit(*address == 1 ? 0 : 1), ::testing::KilledBySignal(SIGSEGV),
              "");
}

TEST_F(FakeTorch, CudaMallocIsRefusedAndReported) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 1), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THAT(Findings(), HasSubstr("cudaMalloc: a GPU's memory is the lease"));
}

TEST_F(FakeTorch, TheHostWaitsForBlockingCopiesAndForTemporarySources) {
  const at::Tensor pinned = at::from_blob(pinned_->address, {8}, at::kFloat);
  const at::Tensor x = at::zeros({8}, at::TensorOptions().device(kGpu));
  const long waits = fake_cuda_calls("cuStreamSynchronize");
  x.copy_(pinned, /*non_blocking=*/true);
  pinned.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(fake_cuda_calls("cuStreamSynchronize"), waits);
  pinned.copy_(x);
  EXPECT_EQ(fake_cuda_calls("cuStreamSynchronize"), waits + 1);
  // The conversion to float makes a temporary source, so the call waits.
  x.copy_(pinned.to(at::kDouble), /*non_blocking=*/true);
  EXPECT_EQ(fake_cuda_calls("cuStreamSynchronize"), waits + 2);
}

TEST_F(FakeTorch, APageableCopyIsFoundIfForbidden) {
  const at::Tensor x = at::zeros({8}).to(kGpu);
  fake_cuda_set("pageable=0");
  x.copy_(at::ones({8}));
  EXPECT_THAT(Findings(),
              HasSubstr("cuMemcpyAsync: 32 bytes of pageable memory"));
  x.copy_(at::from_blob(pinned_->address, {8}, at::kFloat));
  EXPECT_EQ(Findings(), "");
  fake_cuda_set("pageable=1");
}

TEST_F(FakeTorch, HostTensorsAreRefusedAsOperands) {
  const at::Tensor x = at::ones({4}).to(kGpu);
  EXPECT_THROW(x + at::ones({4}), c10::Error);
  EXPECT_THROW(at::mm(at::ones({4, 4}).to(kGpu), at::ones({4, 4})), c10::Error);
}

struct Heads {
  at::Tensor q, k, v, gradient;
};
Heads Draw(int64_t rows, int64_t heads, int64_t kv_heads, at::ScalarType type) {
  return {at::randn({1, heads, rows, 64}).to(type),
          at::randn({1, kv_heads, rows, 64}).to(type),
          at::randn({1, kv_heads, rows, 64}).to(type),
          at::randn({1, heads, rows, 64}).to(type)};
}
Heads ToGpu(const Heads& h) {
  return {h.q.to(kGpu), h.k.to(kGpu), h.v.to(kGpu), h.gradient.to(kGpu)};
}
at::Tensor Wide(const at::Tensor& t) { return t.to(at::kFloat); }

TEST_F(FakeTorch, BothFlashOperatorsAcceptGroupedQueries) {
  const Heads h = Draw(100, 4, 2, at::kBFloat16), g = ToGpu(h);
  const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      Wide(h.q), Wide(h.k), Wide(h.v), 0, true);
  const auto got =
      at::_scaled_dot_product_flash_attention(g.q, g.k, g.v, 0, true);
  ExpectSame(std::get<0>(got), o.to(at::kBFloat16));
  ExpectSame(std::get<1>(got), lse);
  const auto rows = [](const at::Tensor& t) { return t.transpose(1, 2); };
  const auto other = at::_flash_attention_forward(
      rows(g.q), rows(g.k), rows(g.v), {}, {}, 100, 100, 0, true, false);
  ExpectSame(rows(std::get<0>(other)), o.to(at::kBFloat16));
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      rows(g.gradient), rows(g.q), rows(g.k), rows(g.v), std::get<0>(other),
      std::get<1>(other), {}, {}, 100, 100, 0, true, std::get<2>(other),
      std::get<3>(other));
  const auto expected =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          Wide(h.gradient), Wide(h.q), Wide(h.k), Wide(h.v),
          Wide(o.to(at::kBFloat16)), lse, 0, true);
  EXPECT_EQ(dk.size(2), 2);
  ExpectSame(rows(dq), std::get<0>(expected).to(at::kBFloat16));
  ExpectSame(rows(dk), std::get<1>(expected).to(at::kBFloat16));
  ExpectSame(rows(dv), std::get<2>(expected).to(at::kBFloat16));
}

TEST_F(FakeTorch, FlashRefusesFp32AndEfficientRefusesGroupedQueries) {
  const Heads wide = ToGpu(Draw(32, 2, 1, at::kFloat));
  EXPECT_THROW(at::_scaled_dot_product_flash_attention(wide.q, wide.k, wide.v),
               c10::Error);
  EXPECT_THROW(at::_scaled_dot_product_efficient_attention(wide.q, wide.k,
                                                           wide.v, {}, true),
               c10::Error);
}

TEST_F(FakeTorch, EfficientAttentionPadsItsLogSumExp) {
  const Heads h = Draw(100, 2, 2, at::kFloat), g = ToGpu(h);
  const auto [o, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(h.q, h.k, h.v, 0, true);
  const auto [output, padded, seed, offset] =
      at::_scaled_dot_product_efficient_attention(g.q, g.k, g.v, {}, true, 0,
                                                  true);
  ExpectSame(output, o);
  EXPECT_EQ(padded.size(2), 128);
  ExpectSame(padded.narrow(2, 0, 100), lse);
  const auto [dq, dk, dv, bias] =
      at::_scaled_dot_product_efficient_attention_backward(
          g.gradient, g.q, g.k, g.v, {}, output, padded, seed, offset, 0,
          {true, true, true, false}, true);
  const auto expected =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          h.gradient, h.q, h.k, h.v, o, lse, 0, true);
  ExpectSame(dq, std::get<0>(expected));
  ExpectSame(dk, std::get<1>(expected));
  ExpectSame(dv, std::get<2>(expected));
  EXPECT_FALSE(bias.defined());
  // A log-sum-exp with another row alignment is refused.
  EXPECT_THROW(at::_scaled_dot_product_efficient_attention_backward(
                   g.gradient, g.q, g.k, g.v, {}, output,
                   padded.narrow(2, 0, 100).contiguous(), seed, offset, 0,
                   {true, true, true, false}, true),
               c10::Error);
}

// In half types the kernel reads the output with a row stride of heads * dim.
TEST_F(FakeTorch, EfficientBackwardRefusesAContiguousOutputInHalfTypes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Heads g = ToGpu(Draw(32, 2, 2, type));
    const auto forward = at::_scaled_dot_product_efficient_attention(
        g.q, g.k, g.v, {}, true, 0, true);
    const auto backward = [&, &lse = std::get<1>(forward),
                           &seed = std::get<2>(forward)](const at::Tensor& o) {
      at::_scaled_dot_product_efficient_attention_backward(
          g.gradient, g.q, g.k, g.v, {}, o, lse, seed, seed, 0,
          {true, true, true, false}, true);
    };
    const at::Tensor& o = std::get<0>(forward);
    EXPECT_NO_THROW(backward(o));
    if (type == at::kFloat) {
      EXPECT_NO_THROW(backward(o.contiguous()));
    } else {
      EXPECT_THROW(backward(o.contiguous()), c10::Error);
    }
  }
}

}  // namespace
}  // namespace sluice::fake_cuda
