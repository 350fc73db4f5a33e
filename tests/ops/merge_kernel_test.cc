#include "kernels/ops/merge_kernel.h"

#include <algorithm>
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

  // Lays values out one after another, with guards between them; Send copies
  // all of it to the GPU's memory.
  template <typename T>
  T* Lay(const std::vector<T>& values) {
    const size_t at = laid_.size() + kGuard;
    const size_t size = values.size() * sizeof(T);
    laid_.resize(
        RoundUp(Bytes(static_cast<int64_t>(at + size)), Bytes(kGuard)).size() +
            kGuard,
        kGuardByte);
    std::memcpy(laid_.data() + at, values.data(), size);
    return reinterpret_cast<T*>(memory_->address() + at);
  }
  void Send() {
    EXPECT_THAT(
        device::CopyNow(*driver_, memory_->address(), laid_.data(),
                        Bytes(std::ssize(laid_)), CopyDirection::kHostToDevice),
        IsOk());
  }
  device::Content Fetch() {
    device::Content content(laid_.size());
    EXPECT_THAT(device::CopyNow(*driver_, content.data(), memory_->address(),
                                Bytes(std::ssize(content)),
                                CopyDirection::kDeviceToHost),
                IsOk());
    return content;
  }
  // Out of what was laid and what is there now, which is the same from then on.
  void Take(const device::Content& now, const float* place,
            std::vector<float>& values) {
    const auto at = static_cast<size_t>(
        reinterpret_cast<const std::byte*>(place) - memory_->address());
    const size_t size = values.size() * sizeof(float);
    std::memcpy(values.data(), now.data() + at, size);
    std::memcpy(laid_.data() + at, now.data() + at, size);
  }

  template <typename T>
  Side Merged(const MergeShape& shape, const Side& a,
              const std::vector<T>& block_o,
              const std::vector<float>& block_lse) {
    laid_.clear();
    float* const o = Lay(a.o);
    float* const lse = Lay(a.lse);
    T* const on_device = Lay(block_o);
    float* const block_lse_on_device = Lay(block_lse);
    Send();
    const auto stream = driver_->CreateStream(DeviceIndex(0));
    EXPECT_THAT(stream, IsOk());
    EXPECT_THAT(
        kernel_->Launch(shape, o, lse, on_device, block_lse_on_device, *stream),
        IsOk());
    EXPECT_THAT(driver_->SynchronizeStream(*stream), IsOk());
    EXPECT_THAT(driver_->DestroyStream(*stream), IsOk());
    Side merged = a;
    const device::Content now = Fetch();
    Take(now, o, merged.o);
    Take(now, lse, merged.lse);
    // Guards, and what it only reads.
    const auto [was, is] = std::ranges::mismatch(laid_, now);
    if (was != laid_.end()) {
      ADD_FAILURE() << "the kernel wrote where it has no result: byte "
                    << was - laid_.begin() << " of " << laid_.size() << ", "
                    << reinterpret_cast<const std::byte*>(o + a.o.size()) -
                           memory_->address()
                    << " is the end of o";
    }
    return merged;
  }

  static constexpr size_t kGuard = 256;
  static constexpr std::byte kGuardByte{0xa5};

  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<device::Mapped> memory_;
  std::unique_ptr<MergeKernel> kernel_;
  device::Content laid_;  // what the GPU's memory holds, from its start
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

// As rows of a larger tensor are: what lies between them is not the kernel's.
TEST_F(MergeKernelOnGpu, LeavesWhatLiesBetweenItsRowsAsItIs) {
  const RowHeadStrides apart = {3 * 40 + 8, 40};
  const MergeShape shape = {7, 3, 20, apart, {3, 1}, apart, {3, 1}};
  Side a = RandomSide({7 + 1, 3 + 1, 40, {}, {}, {}, {}}, 2, 1);
  const Side b = RandomSide({7 + 1, 3 + 1, 40, {}, {}, {}, {}}, 2, 2);
  const Side before = a;
  const Side gpu = Merged(shape, a, b.o, b.lse);
  MergeAttention(shape, a.o.data(), a.lse.data(), b.o.data(), b.lse.data());
  ExpectSame(gpu, a);
  int between = 0;
  for (size_t i = 0; i < a.o.size(); ++i) {
    if (a.o[i] != before.o[i]) continue;
    ++between;
    EXPECT_EQ(gpu.o[i], before.o[i]) << i;
  }
  EXPECT_GE(between, 7 * 3 * 20);
}

}  // namespace
}  // namespace sluice::ops
