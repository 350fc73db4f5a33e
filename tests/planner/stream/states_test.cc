#include "planner/stream/states.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/optimizer_collectives.h"

namespace sluice::stream {
namespace {

ModelShape Sized(int64_t layers, int64_t hidden, int64_t vocab) {
  return Llama({.layers = layers,
                .hidden = hidden,
                .heads = 8,
                .kv_heads = 8,
                .ffn = 3 * hidden,
                .vocab = vocab});
}

const ModelShape kModels[] = {Sized(3, 64, 300), Sized(40, 256, 1000),
                              Sized(2, 2048, 9000), Sized(1, 8192, 5)};

TEST(CutFormerBuckets, CoverEverythingOnceAndAlternateOwners) {
  constexpr int64_t kMebibyte = (1 << 20) / 4;
  const auto whole =
      CutFormerBuckets(2 * kMebibyte + 5, 2, FormerDealing::kMebibytes);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole[1].offset, kMebibyte);
  EXPECT_EQ(whole[1].owner, 1);
  EXPECT_EQ(whole[2].size, 5);
  EXPECT_EQ(whole[2].owner, 0);
  const auto even =
      CutFormerBuckets(2 * kMebibyte + 5, 2, FormerDealing::kEven);
  ASSERT_EQ(even.size(), 4u);
  EXPECT_EQ(even[0].size, kMebibyte / 2 + 16);
  EXPECT_EQ(even[3].owner, 1);
}

TEST(CutRounds, CoverEveryPartOnceWithABucketPerRank) {
  for (const ModelShape& model : kModels) {
    const std::vector<int64_t> parts = PartSizes(model);
    for (const int ranks : {1, 2, 3, 8}) {
      int64_t next = 0, part_end = 0, part = -1;
      for (const Round& round : CutRounds(model, ranks)) {
        if (round.part != part) {
          EXPECT_EQ(next, part_end);
          part = round.part;
          part_end += parts[static_cast<size_t>(part)];
        }
        int owner = 0;
        for (const Bucket& b : round.buckets) {
          EXPECT_EQ(b.offset, next);
          EXPECT_EQ(b.owner, owner++);
          EXPECT_LE(b.size, kBucketElements);
          next += b.size;
          EXPECT_TRUE(!round.even || b.size == round.buckets[0].size);
        }
        EXPECT_TRUE(!round.even || owner == ranks);
        EXPECT_LE(next, part_end);
      }
      EXPECT_EQ(next, model.trained_parameters());
    }
  }
}

TEST(OwnedElements, AreThoseOfTheRanksBuckets) {
  for (const ModelShape& model : kModels) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::vector<int64_t> owned(static_cast<size_t>(ranks));
      for (const Bucket& b : CutBuckets(model, ranks)) {
        owned[static_cast<size_t>(b.owner)] += b.size;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(OwnedElements(model, ranks, rank),
                  owned[static_cast<size_t>(rank)]);
      }
      // Each round may give a rank 16 elements (a cache line) above its share.
      const auto [least, most] =
          std::minmax_element(owned.begin(), owned.end());
      EXPECT_LE(*most, model.trained_parameters() / ranks +
                           16 * std::ssize(CutRounds(model, ranks)));
      EXPECT_GT(*least, 0);
    }
  }
}

TEST(OptimizerCollectives, Are145For8BOn8RanksAndAtMost1000On7) {
  const ModelShape llama8b = Llama({.layers = 32,
                                    .hidden = 4096,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .ffn = 14336,
                                    .vocab = 128256});
  EXPECT_EQ(sluice::testing::OptimizerCollectives(llama8b, 8), 145);
  EXPECT_LE(sluice::testing::OptimizerCollectives(llama8b, 7),
            1000);  // uneven rounds
  EXPECT_EQ(sluice::testing::OptimizerCollectives(llama8b, 1), 0);
  // cuda_ranks_test.py expects 8 NCCL collectives for this model: all of these
  // but the sum of the norm.
  const ModelShape small = Llama({.layers = 2,
                                  .hidden = 64,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .ffn = 96,
                                  .vocab = 256});
  EXPECT_EQ(sluice::testing::OptimizerCollectives(small, 2), 4 + 4 + 1);
}

TEST(PartSizes, CoverTheFlatBuffer) {
  for (ModelShape model : {Sized(3, 64, 300), Gpt(Sized(2, 128, 50))}) {
    model.max_positions = 40;
    int64_t all = 0;
    for (const int64_t part : PartSizes(model)) all += part;
    EXPECT_EQ(all, model.trained_parameters());
    EXPECT_EQ(std::ssize(PartSizes(model)), model.layers + 2);
    EXPECT_EQ(PartSizes(model)[1], model.layer_parameters());
  }
}

TEST(CutStates, CoverOwnElementsInOrderWithinPartsAndSlots) {
  for (const ModelShape& model : kModels) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t slot = SlotElements(model, Dtype::kBf16, ranks, rank);
        EXPECT_LE(slot * 12, kMostUnitBytes.count());
        int64_t next = 0, part = 0;
        for (const StateUnit& unit :
             CutStates(model, Dtype::kBf16, ranks, rank)) {
          EXPECT_EQ(unit.begin, next);
          EXPECT_GE(unit.part, part);
          EXPECT_LT(unit.part, model.layers + 2);
          EXPECT_GT(unit.size, 0);
          EXPECT_LE(unit.size, slot);
          next += unit.size;
          part = unit.part;
        }
        EXPECT_EQ(next, OwnedElements(model, ranks, rank));
      }
    }
  }
}

TEST(CountStates, StatesInHostMemoryLeaveARingInHbm) {
  const ModelShape model = Sized(40, 2048, 32000);
  const StateBytes hbm = CountStates(model, Dtype::kBf16, 2, 0);
  const StateBytes host =
      CountStates(model, Dtype::kBf16, 2, 0, StatePlace::kHost);
  EXPECT_EQ(hbm.host, Bytes(0));
  EXPECT_EQ(host.host + Bytes(64), hbm.optimizer);  // the counter stays in HBM
  EXPECT_EQ(host.weights, hbm.weights);
  EXPECT_LE(host.optimizer, kStateSlots * kMostUnitBytes + Bytes(64));
  EXPECT_GT(host.optimizer, kStateSlots * kMostUnitBytes - MiB(1));
}

}  // namespace
}  // namespace sluice::stream
