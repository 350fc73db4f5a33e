#include "planner/stream/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

StreamShape Shape(int64_t seq_len, int64_t chunk) {
  return StreamShape({.model = {.hidden = 32, .heads = 4, .kv_heads = 2},
                      .layout = ChunkLayout(seq_len, chunk, 2)});
}

TEST(Schedule, ForwardEndsARowBeforeTheNextAndBackwardAKeyChunk) {
  EXPECT_THAT(ForwardBlocks({0, 1, 2}),
              ElementsAre(Block{0, 0}, Block{1, 1}, Block{0, 1}, Block{2, 2},
                          Block{0, 2}, Block{1, 2}));
  EXPECT_THAT(BackwardBlocks({0, 1, 2}),
              ElementsAre(Block{0, 0}, Block{0, 1}, Block{0, 2}, Block{1, 1},
                          Block{1, 2}, Block{2, 2}));
}

TEST(Schedule, OnlyDiagonalBlocksAreMasked) {
  for (const Block& block : BackwardBlocks({0, 1, 5})) {
    EXPECT_EQ(block.mask(), block.i == block.j ? Mask::kCausal : Mask::kNone);
  }
}

// The closed form against counting.
TEST(Schedule, ExecutionsAreThoseOfTheBlocks) {
  for (const int64_t seq_len : {1, 7, 16, 17, 48, 71, 128}) {
    const StreamShape shape = Shape(seq_len, 16);
    for (const auto& [blocks, diagonal, offdiagonal] :
         {std::tuple(ForwardBlocks(shape.active_chunks()),
                     Segment::kDiagonalForward, Segment::kOffdiagonalForward),
          std::tuple(BackwardBlocks(shape.active_chunks()),
                     Segment::kDiagonalBackward,
                     Segment::kOffdiagonalBackward)}) {
      for (const Segment segment : {diagonal, offdiagonal}) {
        const auto count = [&](bool full) {
          return std::ranges::count_if(blocks, [&](const Block& b) {
            return (b.mask() == Mask::kCausal) == (segment == diagonal) &&
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

// The closed form against block by block.
TEST(Schedule, BlocksMoveTheirOperandsOnceEach) {
  for (const int64_t seq_len : {1, 16, 17, 71, 128}) {
    const StreamShape shape = Shape(seq_len, 16);
    int64_t keys = 0, queries = 0, sums = 0;
    for (const Block& b : ForwardBlocks(shape.active_chunks())) {
      if (b.mask() == Mask::kNone)
        keys += 2 * shape.chunk_bytes(Class::kK, b.i);
    }
    for (const Block& b : BackwardBlocks(shape.active_chunks())) {
      for (const Class which :
           {Class::kQ, Class::kOutputGradient, Class::kO, Class::kLse}) {
        queries += shape.chunk_bytes(which, b.j);
      }
      if (b.i > 0) sums += shape.chunk_bytes(Class::kQueryGradient, b.j);
    }
    const LayerTraffic traffic = CountTraffic(shape);
    EXPECT_EQ(traffic.forward.in, shape.class_bytes(Class::kInput) + keys);
    EXPECT_EQ(traffic.blocks.in,
              queries + sums + 2 * shape.class_bytes(Class::kK));
    EXPECT_EQ(traffic.blocks.out, sums);
  }
}

// What profiles tell the planner: a fixed part, and a class's bytes both ways
// for what is swapped.
TEST(Schedule, FixedTrafficAndSwappedClassesAreAllTraffic) {
  for (const double alpha : {0.0, 0.5, 1.0}) {
    const StreamShape shape({.model = {.hidden = 32, .heads = 4, .kv_heads = 2},
                             .layout = ChunkLayout(71, 16, 2),
                             .alpha = alpha});
    const LayerTraffic all = CountTraffic(shape), fixed = FixedTraffic(shape);
    int64_t swapped = shape.class_bytes(Class::kInput);
    for (const Class which : kLayerClasses) {
      if (!Traits(which).shared) swapped += shape.swapped_bytes(which);
    }
    EXPECT_EQ(all.forward.in, fixed.forward.in);
    EXPECT_EQ(all.tokens.in + all.blocks.in,
              fixed.tokens.in + fixed.blocks.in + swapped);
    EXPECT_LE(all.forward.out, fixed.forward.out + swapped);
    EXPECT_LE(all.tokens.out, fixed.tokens.out);
    EXPECT_EQ(all.blocks.out, fixed.blocks.out);
  }
}

TEST(Classes, EachHasAWidthInTheModelsThatHaveIt) {
  const StreamShape gated = Shape(64, 16);
  ModelShape gpt =
      Gpt({.hidden = 32, .heads = 4, .kv_heads = 2, .max_positions = 64});
  const StreamShape plain({.model = gpt, .layout = ChunkLayout(64, 16, 2)});
  for (const ClassTraits& c : kClasses) {
    EXPECT_GT(gated.row_bytes(c.which), 0) << c.name;
    EXPECT_EQ(plain.row_bytes(c.which) > 0, !c.gated_only) << c.name;
  }
}

// Rows of k and v travel unless all of them are kept, whatever is asked for;
// and where a part is kept the rest can be made again.
TEST(Classes, NoOneKeepsAPartOfWhatEveryRankReads) {
  for (const ClassTraits& c : kClasses) {
    const bool rows = c.keep == Keep::kRows;
    EXPECT_FALSE(c.shared && rows) << c.name;
    EXPECT_FALSE(rows && !c.can_recompute) << c.name;
  }
}

}  // namespace
}  // namespace sluice::stream
