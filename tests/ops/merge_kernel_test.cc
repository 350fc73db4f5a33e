#include <algorithm>

#include "kernels/device/sim/sim.h"
#include "kernels/ops/gpu_kernels.h"
#include "tests/ops/merge_cases.h"
#include "tests/ops/on_gpu.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::ops {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

TEST(MergeKernel, FatbinIsEmbedded) {
  if (MergeFatbin().empty()) GTEST_SKIP() << "built without CUDA";
  uint32_t magic;
  std::memcpy(&magic, MergeFatbin().data(), sizeof(magic));
  EXPECT_EQ(magic, 0xba55ed50u);
}

TEST(MergeKernel, LoadIsUnimplementedOnSim) {
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

class MergeKernelOnGpu : public OnGpu<MergeKernel> {
 protected:
  template <typename T>
  Side Merged(const MergeShape& shape, const Side& a,
              const std::vector<T>& block_o,
              const std::vector<float>& block_lse) {
    Side merged = a;
    float* const o = Lay(merged.o);
    float* const lse = Lay(merged.lse);
    const T* const on_device = Lay(block_o);
    const float* const block_lse_on_device = Lay(block_lse);
    Launch(shape, o, lse, on_device, block_lse_on_device);
    Take(o, merged.o);
    Take(lse, merged.lse);
    ExpectRestAsLaid();
    return merged;
  }
};

// The reference is the CPU's MergeAttention, which merge_test compares with
// fp64.
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

TEST_F(MergeKernelOnGpu, ResultAgreesWithTheCpus) {
  for (const int64_t rows : {1, 7, 300}) {
    for (const int64_t dim : {20, 64, 128}) {
      const MergeShape shape = Contiguous(rows, 3, dim);
      Side a = RandomSide(shape, 10, 1), b = RandomSide(shape, 10, 2);
      a.lse[0] = b.lse[1] = -kInf;  // entry 0 has no keys in a, 1 none in b
      a.lse[2] = b.lse[2] = -kInf;  // entry 2 has no keys in either
      const Side gpu = Merged(shape, a, b.o, b.lse);
      MergeAttention(shape, a.o.data(), a.lse.data(), b.o.data(), b.lse.data());
      ExpectSame(gpu, a);
    }
  }
}

TEST_F(MergeKernelOnGpu, ResultOfBFloat16BlocksAgreesWithTheCpus) {
  const MergeShape shape = Contiguous(300, 4, 64);
  Side a = RandomSide(shape, 2, 1);
  const Side b = RandomSide(shape, 2, 2);
  std::vector<BFloat16> block;
  for (const float x : b.o) block.push_back(ToBFloat16(x));
  const Side gpu = Merged(shape, a, block, b.lse);
  MergeAttention(shape, a.o.data(), a.lse.data(), block.data(), b.lse.data());
  ExpectSame(gpu, a);
}

// The rows lie apart in a larger tensor.
TEST_F(MergeKernelOnGpu, KernelWritesNothingBetweenItsRows) {
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
