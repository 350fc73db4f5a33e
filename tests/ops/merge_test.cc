#include "kernels/ops/merge.h"

#include <chrono>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ops/merge_cases.h"

namespace sluice::ops {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

Side Merged(const MergeShape& shape, Side a, const Side& b) {
  MergeAttention(shape, a.o.data(), a.lse.data(), b.o.data(), b.lse.data());
  return a;
}

void ExpectNear(const Side& actual, const Side& expected, float tolerance) {
  EXPECT_THAT(actual.o, Pointwise(FloatNear(tolerance), expected.o));
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(actual.lse[i], expected.lse[i]);
    } else {
      EXPECT_NEAR(actual.lse[i], expected.lse[i],
                  tolerance * std::max(1.0f, std::fabs(expected.lse[i])));
    }
  }
}

TEST(MergeAttention, MergeAgreesWithTheFormulaInFp64) {
  for (const float spread : {0.1f, 1.0f, 30.0f, 300.0f}) {
    for (const int64_t rows : {1, 7, 300}) {
      const MergeShape shape = Contiguous(rows, 3, 20);
      const Side a = RandomSide(shape, spread, 1);
      const Side b = RandomSide(shape, spread, 2);
      ExpectNear(Merged(shape, a, b), ReferenceMerge(shape, a, b), 1e-6f);
    }
  }
}

TEST(MergeAttention, HugeLogarithmsDoNotOverflow) {
  const MergeShape shape = Contiguous(1, 1, 1);
  const Side merged = Merged(shape, {{2}, {3e38f}}, {{4}, {3e38f}});
  EXPECT_FLOAT_EQ(merged.o[0], 3);
  EXPECT_FLOAT_EQ(merged.lse[0], 3e38f);
}

TEST(MergeAttention, ARowThatAttendedToNothingIsIgnoredWhateverItHolds) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const MergeShape shape = Contiguous(3, 1, 1);
  const Side merged = Merged(shape, {{nan, 5, nan}, {-kInf, 1, -kInf}},
                             {{7, nan, nan}, {2, -kInf, -kInf}});
  EXPECT_THAT(merged.o, ::testing::ElementsAre(7, 5, 0));
  EXPECT_THAT(merged.lse, ::testing::ElementsAre(2, 1, -kInf));
}

TEST(MergeAttention, ANanOfPositiveWeightReachesTheResult) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const MergeShape shape = Contiguous(1, 1, 1);
  EXPECT_TRUE(std::isnan(Merged(shape, {{1}, {0}}, {{nan}, {0}}).o[0]));
  EXPECT_TRUE(std::isnan(Merged(shape, {{1}, {0}}, {{1}, {nan}}).lse[0]));
}

TEST(MergeAttention, ManyBlocksGiveTheSoftmaxOverAllKeys) {
  // 64 keys in 8 blocks of 8. The value of each key is its score.
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 20);
  double top = 0, bottom = 0;
  float o = std::numeric_limits<float>::quiet_NaN(), lse = -kInf;
  for (int block = 0; block < 8; ++block) {
    double block_top = 0, block_bottom = 0;
    for (int i = 0; i < 8; ++i) {
      const double score = normal(random);
      block_top += std::exp(score) * score;
      block_bottom += std::exp(score);
    }
    top += block_top;
    bottom += block_bottom;
    const auto block_o = static_cast<float>(block_top / block_bottom);
    const auto block_lse = static_cast<float>(std::log(block_bottom));
    MergeAttention(Contiguous(1, 1, 1), &o, &lse, &block_o, &block_lse);
  }
  EXPECT_NEAR(o, top / bottom, 1e-5 * std::fabs(top / bottom));
  EXPECT_NEAR(lse, std::log(bottom), 1e-5 * std::fabs(std::log(bottom)));
}

TEST(MergeAttention, BFloat16BlocksAreMerged) {
  const MergeShape shape = Contiguous(70, 2, 33);
  Side a = RandomSide(shape, 2, 1), b = RandomSide(shape, 2, 2);
  std::vector<BFloat16> block;
  for (float& x : b.o) {
    block.push_back(ToBFloat16(x));
    x = FromBFloat16(block.back());
  }
  const Side expected = ReferenceMerge(shape, a, b);
  MergeAttention(shape, a.o.data(), a.lse.data(), block.data(), b.lse.data());
  ExpectNear(a, expected, 1e-6f);
}

TEST(MergeAttention, EveryStrideIsFollowed) {
  const int64_t rows = 9, heads = 3, dim = 5;
  const MergeShape plain = Contiguous(rows, heads, dim);
  const Side a = RandomSide(plain, 1, 1), b = RandomSide(plain, 1, 2);
  const Side expected = ReferenceMerge(plain, a, b);
  // The block's o is [heads, rows, dim + 2], its lse [rows, heads + 1].
  MergeShape shape = plain;
  shape.block_o = {dim + 2, rows * (dim + 2)};
  shape.block_lse = {heads + 1, 1};
  std::vector<float> block_o(static_cast<size_t>(heads * rows * (dim + 2)));
  std::vector<float> block_lse(static_cast<size_t>(rows * (heads + 1)));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(&b.o[static_cast<size_t>((r * heads + h) * dim)], dim,
                  &block_o[static_cast<size_t>((h * rows + r) * (dim + 2))]);
      block_lse[static_cast<size_t>(r * (heads + 1) + h)] =
          b.lse[static_cast<size_t>(h * rows + r)];
    }
  }
  Side merged = a;
  MergeAttention(shape, merged.o.data(), merged.lse.data(), block_o.data(),
                 block_lse.data());
  ExpectNear(merged, expected, 1e-6f);
}

TEST(MergeAttention, EmptyShapesAreAccepted) {
  for (const MergeShape& shape :
       {Contiguous(0, 2, 4), Contiguous(4, 0, 4), Contiguous(4, 2, 0)}) {
    MergeAttention(shape, static_cast<float*>(nullptr), nullptr,
                   static_cast<const float*>(nullptr), nullptr);
  }
}

// Prints the measured time.
TEST(MergeAttention, MergeTakesAtMostFiveMilliseconds) {
  const MergeShape shape = Contiguous(1024, 4, 64);
  Side a = RandomSide(shape, 2, 1);
  const Side b = RandomSide(shape, 2, 2);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    MergeAttention(shape, a.o.data(), a.lse.data(), b.o.data(), b.lse.data());
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  std::printf("merge of 1024 rows x 4 heads x 64: %.0f us\n", best * 1e6);
  EXPECT_LE(best, 5e-3);
}

}  // namespace
}  // namespace sluice::ops
