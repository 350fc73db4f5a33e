#include "planner/stream/states.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::stream {
namespace {

TEST(CutBuckets, CoverEverythingOnceAndGoRound) {
  const auto buckets =
      CutBuckets(2 * kBucketElements + 5, 2, Dealing::kMebibytes);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].offset, kBucketElements);
  EXPECT_EQ(buckets[1].owner, 1);
  EXPECT_EQ(buckets[2].size, 5);
  EXPECT_EQ(buckets[2].owner, 0);
}

TEST(CutBuckets, GiveEachRankItsShareHoweverSmallTheModel) {
  for (const int64_t elements : {1000, 100'000, 262'145, 5'000'011}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::vector<int64_t> owned(static_cast<size_t>(ranks));
      int64_t next = 0;
      for (const Bucket& b : CutBuckets(elements, ranks)) {
        EXPECT_EQ(b.offset, next);
        EXPECT_LE(b.size, kBucketElements);
        next += b.size;
        owned[static_cast<size_t>(b.owner)] += b.size;
      }
      EXPECT_EQ(next, elements);
      const auto [least, most] =
          std::minmax_element(owned.begin(), owned.end());
      // Each bucket is at most a cache line larger than an even one.
      const int64_t rounds = elements / (kBucketElements * ranks) + 1;
      EXPECT_LE(*most, elements / ranks + 16 * (rounds + 1))
          << elements << " on " << ranks;
      EXPECT_GT(*least, 0) << elements << " on " << ranks;
    }
  }
}

TEST(OwnedElements, AreThoseOfTheRanksBuckets) {
  for (const int64_t elements : {1, 20, 1000, 262'145, 5'000'011}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::vector<int64_t> owned(static_cast<size_t>(ranks));
      for (const Bucket& b : CutBuckets(elements, ranks)) {
        owned[static_cast<size_t>(b.owner)] += b.size;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(OwnedElements(elements, ranks, rank),
                  owned[static_cast<size_t>(rank)])
            << elements << " on " << ranks << ", rank " << rank;
      }
    }
  }
}

ModelShape Sized(int64_t layers, int64_t hidden, int64_t vocab) {
  return Llama({.layers = layers,
                .hidden = hidden,
                .heads = 8,
                .kv_heads = 8,
                .ffn = 3 * hidden,
                .vocab = vocab});
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
  for (const auto& model :
       {Sized(3, 64, 300), Sized(40, 256, 1000), Sized(2, 2048, 9000)}) {
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
        EXPECT_EQ(next, OwnedElements(model.trained_parameters(), ranks, rank));
      }
    }
  }
}

TEST(CountStates, InHostMemoryLeavesARingInHbm) {
  const ModelShape model = Sized(40, 2048, 32000);
  const StateBytes hbm = CountStates(model, Dtype::kBf16, 2, 0);
  const StateBytes host =
      CountStates(model, Dtype::kBf16, 2, 0, StatePlace::kHost);
  EXPECT_EQ(hbm.host, Bytes(0));
  EXPECT_EQ(host.host + Bytes(64), hbm.optimizer);  // the kernel's count stays
  EXPECT_EQ(host.weights, hbm.weights);
  EXPECT_LE(host.optimizer, kStateSlots * kMostUnitBytes + Bytes(64));
  EXPECT_GT(host.optimizer, kStateSlots * kMostUnitBytes - MiB(1));
}

}  // namespace
}  // namespace sluice::stream
