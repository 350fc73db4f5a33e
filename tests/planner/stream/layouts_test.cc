#include "planner/stream/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

TEST(ChunkLayout, FirstRanksGetTheRemainder) {
  const ChunkLayout layout(21, 8, 3);
  EXPECT_EQ(layout.chunks(), 3);
  EXPECT_EQ(layout.rows(2), 5);
  EXPECT_EQ(layout.local_rows(0, 0), 3);
  EXPECT_EQ(layout.local_rows(0, 1), 3);
  EXPECT_EQ(layout.local_rows(0, 2), 2);
  EXPECT_EQ(layout.local_offset(0, 2), 6);
  EXPECT_EQ(layout.local_rows(2, 2), 1);
  EXPECT_EQ(layout.local_rows_before(2, 1), 6);
  EXPECT_EQ(layout.total_local_rows(1), 8);
}

TEST(ChunkLayout, ARankMayOwnNoRowOfTheTail) {
  const ChunkLayout layout(10, 8, 4);
  EXPECT_EQ(layout.local_rows(1, 1), 1);
  EXPECT_EQ(layout.local_rows(1, 2), 0);
  EXPECT_EQ(layout.local_offset(1, 3), 2);
}

TEST(ChunkLayout, AChunkLongerThanTheSequenceIsTheSequence) {
  const ChunkLayout layout(5, 64, 2);
  EXPECT_EQ(layout.chunks(), 1);
  EXPECT_EQ(layout.max_rows(), 5);
}

TEST(ChunkLayout, EveryRowHasExactlyOneOwner) {
  for (int64_t seq_len = 1; seq_len <= 40; ++seq_len) {
    for (int64_t chunk : {1, 3, 7, 8, 64}) {
      for (int64_t ranks : {1, 2, 3, 8}) {
        const ChunkLayout layout(seq_len, chunk, ranks);
        int64_t rows = 0;
        for (int64_t m = 0; m < layout.chunks(); ++m) {
          int64_t next = 0;
          for (int64_t r = 0; r < ranks; ++r) {
            ASSERT_EQ(layout.local_offset(m, r), next);
            next += layout.local_rows(m, r);
          }
          ASSERT_EQ(next, layout.rows(m));
          rows += next;
        }
        ASSERT_EQ(rows, seq_len);
        int64_t total = 0;
        for (int64_t r = 0; r < ranks; ++r) {
          int64_t before = 0;
          for (int64_t m = 0; m <= layout.chunks(); ++m) {
            ASSERT_EQ(layout.local_rows_before(m, r), before);
            if (m < layout.chunks()) before += layout.local_rows(m, r);
          }
          total += layout.total_local_rows(r);
        }
        ASSERT_EQ(total, seq_len);
      }
    }
  }
}

TEST(HeadLayout, WholeGroupsStayGrouped) {
  const HeadLayout layout(8, 4, 2);
  EXPECT_TRUE(layout.grouped);
  EXPECT_EQ(layout.kv_per_rank, 2);
  EXPECT_THAT(layout.kv_of(1), ElementsAre(2, 3));
}

TEST(HeadLayout, FewerKvHeadsThanRanksAreReplicated) {
  const HeadLayout layout(8, 2, 4);
  EXPECT_TRUE(layout.grouped);
  EXPECT_EQ(layout.kv_per_rank, 1);
  EXPECT_THAT(layout.kv_of(1), ElementsAre(0));
  EXPECT_THAT(layout.kv_of(2), ElementsAre(1));
}

TEST(HeadLayout, UnalignedGroupsAreExpandedOnEveryRank) {
  const HeadLayout layout(12, 3, 4);
  EXPECT_FALSE(layout.grouped);
  EXPECT_EQ(layout.kv_per_rank, 3);
  EXPECT_THAT(layout.kv_of(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(layout.kv_of(1), ElementsAre(0, 1, 1));
}

TEST(HeadLayout, EachLocalQHeadFindsItsKvHead) {
  for (int64_t kv_heads : {1, 2, 3, 4, 6, 12, 24}) {
    for (int64_t ranks : {1, 2, 3, 4, 6, 8}) {
      const HeadLayout layout(24, kv_heads, ranks);
      const int64_t run = layout.q_per_rank / layout.kv_per_rank;
      for (int64_t q = 0; q < 24; ++q) {
        const int64_t local = q % layout.q_per_rank;
        ASSERT_EQ(layout.kv_of(q / layout.q_per_rank)[local / run],
                  q / (24 / kv_heads));
      }
    }
  }
}

// Qwen2.5-7B on 8 ranks, and more ranks than heads.
TEST(HeadLayout, RanksBeyondTheHeadsSplitTheQueryRows) {
  const HeadLayout qwen(28, 4, 8);
  EXPECT_EQ(qwen.head_ranks, 4);
  EXPECT_EQ(qwen.row_parts, 2);
  EXPECT_EQ(qwen.q_per_rank, 7);
  EXPECT_EQ(qwen.kv_per_rank, 1);
  EXPECT_EQ(qwen.part(3), 0);
  EXPECT_EQ(qwen.part(4), 1);
  EXPECT_EQ(qwen.first_head(5), 7);
  EXPECT_THAT(qwen.kv_of(5), ElementsAre(1));
  const HeadLayout beyond(2, 1, 6);
  EXPECT_EQ(beyond.head_ranks, 2);
  EXPECT_EQ(beyond.row_parts, 3);
  EXPECT_EQ(HeadLayout(3, 3, 2).row_parts, 2);
}

}  // namespace
}  // namespace sluice::stream
