#include "kernels/ops/merge_kernel.h"

#include <memory>

#include "kernels/device/sim/sim.h"
#include "tests/conformance/mapped.h"
#include "tests/ops/merge_cases.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::ops {
namespace {

using ::sluice::device::CopyDirection;
using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

TEST(MergeKernel, IsEmbeddedAsAFatbin) {
  if (MergeFatbin().empty()) GTEST_SKIP() << "built without CUDA";
  uint32_t magic;
  std::memcpy(&magic, MergeFatbin().data(), sizeof(magic));
  EXPECT_EQ(magic, 0xba55ed50u);
}

TEST(MergeKernel, OnADriverWithoutKernelsSaysWhatToDo) {
  const testing::TempDir directory;
  ASSERT_THAT(
      device::CreateSimNode(directory.path(), {.gpus = {{MiB(1), "pcie0", {}}},
                                               .links = {{"pcie0"}},
                                               .host_memory = MiB(1)}),
      IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto driver,
                              device::OpenSimDriver(directory.path()));
  EXPECT_THAT(MergeKernel::Load(driver.get()),
              StatusIs(absl::StatusCode::kUnimplemented));
}

class MergeKernelOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = device::OpenCudaDriver();
    if (!driver.ok()) GTEST_SKIP() << "cuda: " << driver.status().message();
    driver_ = *std::move(driver);
    const device::Placement gpu = device::Placement::Gpu(DeviceIndex(0));
    const Bytes size = RoundUp(MiB(64), *driver_->Granularity(gpu));
    auto memory = device::Mapped::Create(driver_.get(), gpu, size);
    ASSERT_THAT(memory, IsOk());
    memory_ = *std::move(memory);
    auto kernel = MergeKernel::Load(driver_.get());
    ASSERT_THAT(kernel, IsOk());
    kernel_ = std::make_unique<MergeKernel>(*kernel);
  }

  // Lays values out one after another in the GPU's memory.
  template <typename T>
  T* Put(const std::vector<T>& values) {
    std::byte* const place = memory_->address() + used_;
    const auto size = static_cast<int64_t>(values.size() * sizeof(T));
    EXPECT_THAT(
        device::CopyNow(*driver_, place,
                        reinterpret_cast<const std::byte*>(values.data()),
                        Bytes(size), CopyDirection::kHostToDevice),
        IsOk());
    used_ += RoundUp(Bytes(size), Bytes(256)).count();
    return reinterpret_cast<T*>(place);
  }
  void Get(const float* place, std::vector<float>& values) {
    EXPECT_THAT(device::CopyNow(
                    *driver_, reinterpret_cast<std::byte*>(values.data()),
                    reinterpret_cast<const std::byte*>(place),
                    Bytes(static_cast<int64_t>(values.size() * sizeof(float))),
                    CopyDirection::kDeviceToHost),
                IsOk());
  }

  template <typename T>
  Side Merged(const MergeShape& shape, const Side& a,
              const std::vector<T>& block_o,
              const std::vector<float>& block_lse) {
    used_ = 0;
    float* const o = Put(a.o);
    float* const lse = Put(a.lse);
    T* const on_device = Put(block_o);
    float* const block_lse_on_device = Put(block_lse);
    const auto stream = driver_->CreateStream(DeviceIndex(0));
    EXPECT_THAT(stream, IsOk());
    EXPECT_THAT(
        kernel_->Launch(shape, o, lse, on_device, block_lse_on_device, *stream),
        IsOk());
    EXPECT_THAT(driver_->SynchronizeStream(*stream), IsOk());
    EXPECT_THAT(driver_->DestroyStream(*stream), IsOk());
    Side merged = a;
    Get(o, merged.o);
    Get(lse, merged.lse);
    return merged;
  }

  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<device::Mapped> memory_;
  std::unique_ptr<MergeKernel> kernel_;
  int64_t used_ = 0;
};

// The CPU's MergeAttention is the reference; it is tested against fp64.
void ExpectSame(const Side& gpu, const Side& cpu) {
  EXPECT_THAT(gpu.o, ::testing::Pointwise(::testing::FloatNear(2e-6f), cpu.o));
  for (size_t i = 0; i < cpu.lse.size(); ++i) {
    if (std::isinf(cpu.lse[i])) {
      EXPECT_EQ(gpu.lse[i], cpu.lse[i]);
    } else {
      EXPECT_NEAR(gpu.lse[i], cpu.lse[i],
                  2e-6 * std::max(1.0f, std::fabs(cpu.lse[i])));
    }
  }
}

TEST_F(MergeKernelOnGpu, AgreesWithTheCpu) {
  for (const int64_t rows : {1, 7, 300}) {
    for (const int64_t dim : {20, 64, 128}) {
      const MergeShape shape = Contiguous(rows, 3, dim);
      Side a = RandomSide(shape, 10, 1), b = RandomSide(shape, 10, 2);
      a.lse[0] = b.lse[1] = -kInf;  // and [2] has nothing on both sides
      a.lse[2] = b.lse[2] = -kInf;
      const Side gpu = Merged(shape, a, b.o, b.lse);
      MergeAttention(shape, a.o.data(), a.lse.data(), b.o.data(), b.lse.data());
      ExpectSame(gpu, a);
    }
  }
}

TEST_F(MergeKernelOnGpu, AgreesWithTheCpuOnBFloat16Blocks) {
  const MergeShape shape = Contiguous(300, 4, 64);
  Side a = RandomSide(shape, 2, 1);
  const Side b = RandomSide(shape, 2, 2);
  std::vector<BFloat16> block;
  for (const float x : b.o) block.push_back(ToBFloat16(x));
  const Side gpu = Merged(shape, a, block, b.lse);
  MergeAttention(shape, a.o.data(), a.lse.data(), block.data(), b.lse.data());
  ExpectSame(gpu, a);
}

}  // namespace
}  // namespace sluice::ops
