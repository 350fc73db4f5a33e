#include "planner/stream/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

constexpr BackwardOrder kOrders[] = {BackwardOrder::kKeysOuter,
                                     BackwardOrder::kQueriesOuter};

StreamShape Shape(int64_t seq_len, int64_t chunk,
                  BackwardOrder order = BackwardOrder::kKeysOuter) {
  return StreamShape({.model = {.hidden = 32, .heads = 4, .kv_heads = 2},
                      .layout = ChunkLayout(seq_len, chunk, 2),
                      .order = order});
}

TEST(Schedule, BlocksRunByQueryRowInForwardAndByOuterChunkInBackward) {
  EXPECT_THAT(ForwardBlocks({0, 1, 2}),
              ElementsAre(Block{0, 0}, Block{1, 1}, Block{0, 1}, Block{2, 2},
                          Block{0, 2}, Block{1, 2}));
  EXPECT_THAT(BackwardBlocks({0, 1, 2}, BackwardOrder::kKeysOuter),
              ElementsAre(Block{0, 0}, Block{0, 1}, Block{0, 2}, Block{1, 1},
                          Block{1, 2}, Block{2, 2}));
  EXPECT_THAT(BackwardBlocks({0, 1, 2}, BackwardOrder::kQueriesOuter),
              ElementsAre(Block{2, 2}, Block{1, 2}, Block{0, 2}, Block{1, 1},
                          Block{0, 1}, Block{0, 0}));
}

TEST(Schedule, AnOuterChunksGradientsAreCompleteAfterItsTurn) {
  for (const BackwardOrder order : kOrders) {
    const std::vector<int64_t> chunks = {0, 1, 2, 5};
    const std::vector<Block> blocks = BackwardBlocks(chunks, order);
    auto at = blocks.begin();
    for (const int64_t outer : OuterChunks(chunks, order)) {
      EXPECT_EQ(*at, (Block{outer, outer}));
      while (at != blocks.end() &&
             (order == BackwardOrder::kKeysOuter ? at->i : at->j) == outer) {
        ++at;
      }
      EXPECT_TRUE(std::none_of(at, blocks.end(), [&](const Block& b) {
        return b.i == outer || b.j == outer;
      }));
    }
    EXPECT_EQ(at, blocks.end());
  }
}

TEST(Schedule, OnlyDiagonalBlocksAreMasked) {
  for (const BackwardOrder order : kOrders) {
    for (const Block& block : BackwardBlocks({0, 1, 5}, order)) {
      EXPECT_EQ(block.mask(), block.i == block.j ? Mask::kCausal : Mask::kNone);
    }
  }
}

// Compares the closed form with counting.
TEST(Schedule, CountsOfExecutionsAgreeWithTheBlocks) {
  for (const int64_t seq_len : {1, 7, 16, 17, 48, 71, 128}) {
    const StreamShape shape = Shape(seq_len, 16);
    struct Case {
      std::vector<Block> blocks;
      Segment diagonal, offdiagonal;
    };
    const auto backward = [&](BackwardOrder order) {
      return Case{BackwardBlocks(shape.active_chunks(), order),
                  Segment::kDiagonalBackward, Segment::kOffdiagonalBackward};
    };
    for (const Case& c :
         {Case{ForwardBlocks(shape.active_chunks()), Segment::kDiagonalForward,
               Segment::kOffdiagonalForward},
          backward(BackwardOrder::kKeysOuter),
          backward(BackwardOrder::kQueriesOuter)}) {
      for (const Segment segment : {c.diagonal, c.offdiagonal}) {
        const auto count = [&](bool full) {
          return std::ranges::count_if(c.blocks, [&](const Block& b) {
            return (b.mask() == Mask::kCausal) == (segment == c.diagonal) &&
                   shape.full(b.j) == full;
          });
        };
        const Executions executions = CountExecutions(shape, segment);
        EXPECT_EQ(executions.full, count(true)) << seq_len;
        EXPECT_EQ(executions.tail, count(false)) << seq_len;
      }
    }
  }
}

// Compares the closed form with a sum over the blocks.
TEST(Schedule, BlocksMoveTheirOperandsOnceEach) {
  for (const BackwardOrder order : kOrders) {
    for (const int64_t seq_len : {1, 16, 17, 71, 128}) {
      const StreamShape shape = Shape(seq_len, 16, order);
      const bool keys_outer = order == BackwardOrder::kKeysOuter;
      const auto bytes = [&](std::vector<Class> classes, int64_t m) {
        int64_t sum = 0;
        for (const Class which : classes) sum += shape.chunk_bytes(which, m);
        return sum;
      };
      const std::vector<Class> keys = {Class::kK, Class::kV};
      const std::vector<Class> queries = {Class::kQ, Class::kOutputGradient,
                                          Class::kO, Class::kLse};
      const std::vector<Class> sums = {
          Class::kQueryGradient, Class::kKeyGradient, Class::kValueGradient};
      int64_t forward = 0, in = 0, out = 0;
      for (const Block& b : ForwardBlocks(shape.active_chunks())) {
        if (b.mask() == Mask::kNone) forward += bytes(keys, b.i);
      }
      const int64_t first = OuterChunks(shape.active_chunks(), order).front();
      for (const Block& b : BackwardBlocks(shape.active_chunks(), order)) {
        const int64_t outer = keys_outer ? b.i : b.j;
        const int64_t inner = keys_outer ? b.j : b.i;
        in += bytes(keys_outer ? queries : keys, inner);
        if (b.mask() == Mask::kCausal) {
          in += bytes(keys_outer ? keys : queries, outer);
        } else {
          out += bytes(sums, inner);
        }
        if (outer != first) in += bytes(sums, inner);
      }
      const LayerTraffic traffic = CountTraffic(shape);
      EXPECT_EQ(traffic.forward.in, shape.class_bytes(Class::kInput) + forward);
      EXPECT_EQ(traffic.blocks.in, in);
      EXPECT_EQ(traffic.blocks.out, out);
    }
  }
}

// Profiles report traffic as a fixed part, and each swapped class's bytes in
// both directions.
TEST(Schedule, FixedTrafficAndSwappedClassesAreAllTraffic) {
  for (const double alpha : {0.0, 0.5, 1.0}) {
    const StreamShape shape({.model = {.hidden = 32, .heads = 4, .kv_heads = 2},
                             .layout = ChunkLayout(71, 16, 2),
                             .alpha = alpha});
    const LayerTraffic all = CountTraffic(shape), fixed = FixedTraffic(shape);
    int64_t swapped = shape.class_bytes(Class::kInput);
    for (const Class which : kLayerClasses) {
      if (!Traits(which).shared()) swapped += shape.swapped_bytes(which);
    }
    EXPECT_EQ(all.forward.in, fixed.forward.in);
    EXPECT_EQ(all.tokens.in + all.blocks.in,
              fixed.tokens.in + fixed.blocks.in + swapped);
    EXPECT_LE(all.forward.out, fixed.forward.out + swapped);
    EXPECT_LE(all.tokens.out, fixed.tokens.out);
    EXPECT_EQ(all.blocks.out, fixed.blocks.out);
  }
}

TEST(Classes, RowBytesArePositiveExactlyInModelsWithTheClass) {
  const StreamShape gated = Shape(64, 16);
  const StreamShape queries_outer = Shape(64, 16, BackwardOrder::kQueriesOuter);
  ModelShape gpt =
      Gpt({.hidden = 32, .heads = 4, .kv_heads = 2, .max_positions = 64});
  const StreamShape plain({.model = gpt, .layout = ChunkLayout(64, 16, 2)});
  for (const ClassTraits& c : kClasses) {
    EXPECT_GT(gated.row_bytes(c.which) + queries_outer.row_bytes(c.which), 0)
        << c.name;
    EXPECT_EQ(plain.row_bytes(c.which) > 0,
              gated.row_bytes(c.which) > 0 && !c.gated_only)
        << c.name;
  }
}

// A shared class (k, v) is kept whole or not at all. A class that is kept by
// rows is free, so that its other rows can be recomputed.
TEST(Classes, SharedClassesAreNotKeptByRows) {
  for (const ClassTraits& c : kClasses) {
    const bool rows = c.keep == Keep::kRows;
    EXPECT_FALSE(c.shared() && rows) << c.name;
    EXPECT_FALSE(rows && !c.free()) << c.name;
  }
}

}  // namespace
}  // namespace sluice::stream
