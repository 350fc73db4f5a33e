#include "tests/fake_cuda/kernels/block.h"

#include <gmock/gmock.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fake_cuda/kernels/language.h"

namespace sluice::fake_cuda {
namespace {

using ::testing::Each;

TEST(Block, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> runs(2 * 3 * 64);
  RunGrid({{3, 2, 1}, {16, 4, 1}}, [&] {
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    ++runs[block * 64 + thread];
  });
  EXPECT_THAT(runs, Each(1));
}

TEST(Block, ThreadsThatDoNotWaitRunInAnotherOrderInEachBlock) {
  std::set<unsigned> firsts;
  unsigned seen = 0;
  RunGrid({{16, 1, 1}, {32, 1, 1}}, [&] {
    if (seen++ % 32 == 0) firsts.insert(threadIdx.x);
  });
  EXPECT_GT(firsts.size(), 4u);
}

TEST(Block, ShufflesPassValuesWithinAWarp) {
  std::vector<int> sums(64), below(64), first(64);
  RunGrid({{1, 1, 1}, {64, 1, 1}}, [&] {
    const auto thread = static_cast<int>(threadIdx.x);
    int sum = thread;
    for (int mask = 16; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(~0u, sum, mask);
    }
    sums[thread] = sum;
    below[thread] = __shfl_down_sync(~0u, thread, 1);
    first[thread] = __shfl_sync(~0u, thread, 0);
  });
  for (int thread = 0; thread < 64; ++thread) {
    EXPECT_EQ(sums[thread], thread < 32 ? 496 : 1520);
    EXPECT_EQ(below[thread], thread % 32 == 31 ? thread : thread + 1);
    EXPECT_EQ(first[thread], thread / 32 * 32);
  }
}

TEST(Block, ABlockBarrierWaitsForAllWarps) {
  static int ready[128];
  std::vector<int> seen(128);
  RunGrid({{4, 1, 1}, {128, 1, 1}}, [&] {
    const unsigned thread = threadIdx.x;
    ready[thread] = static_cast<int>(blockIdx.x) + 1;
    __syncthreads();
    seen[thread] = ready[127 - thread];
    __syncthreads();
  });
  EXPECT_THAT(seen, Each(4));
}

TEST(Block, ABarrierThatSomeThreadsSkipIsAnError) {
  const Grid one = {{1, 1, 1}, {64, 1, 1}};
  EXPECT_THROW(RunGrid(one,
                       [] {
                         if (threadIdx.x != 5) __syncwarp();
                       }),
               std::runtime_error);
  EXPECT_THROW(RunGrid(one,
                       [] {
                         if (threadIdx.x < 32) __syncthreads();
                       }),
               std::runtime_error);
}

}  // namespace
}  // namespace sluice::fake_cuda
