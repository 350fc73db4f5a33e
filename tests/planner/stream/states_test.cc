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

}  // namespace
}  // namespace sluice::stream
