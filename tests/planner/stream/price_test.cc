// Tests the price of memory: the bytes that a step recomputes instead of
// holding them, and the seconds that this costs.

#include <gtest/gtest.h>

#include "planner/stream/profile.h"
#include "planner/stream/stream_shape.h"

namespace sluice::stream {
namespace {

// Returns the options of a step of 4 layers and 8 chunks.
StreamOptions Options() {
  return {.model = Llama({.layers = 4,
                          .hidden = 64,
                          .heads = 4,
                          .kv_heads = 4,
                          .ffn = 128,
                          .vocab = 256}),
          .layout = ChunkLayout(512, 64, 1)};
}

StepPrice Price(const StreamOptions& options) {
  std::vector<plan::SegmentKind> recorded;
  for (const SegmentTraits& segment : kSegments) {
    recorded.push_back({.name = KindOf(segment.which, true), .seconds = 1});
  }
  return PriceOf(options, Profile(options, recorded));
}

TEST(StepPrice, AStepThatRecomputesNothingPaysNothing) {
  const StepPrice price = Price(Options());
  EXPECT_EQ(price.host, HostBytes(Options()));
  EXPECT_EQ(price.hbm, Bytes(0));
  EXPECT_EQ(price.recomputed, Bytes(0));
  EXPECT_EQ(price.recompute_s, 0);
  EXPECT_EQ(price.length_gain(), 1);
}

// Drops half of norm2 (512 rows of 64 fp32 numbers) in 4 layers. The segment
// that makes norm2 also makes x2 and the FFN, so norm2 costs a part of
// the segment.
TEST(StepPrice, DroppedRowsCostTheirShareOfTheSegmentThatMakesThem) {
  StreamOptions options = Options();
  options.fractions = {{"norm2", {0, 0.5}}};
  const StepPrice price = Price(options);
  EXPECT_EQ(price.recomputed, Bytes(4 * 512 * 64 * 4 / 2));
  EXPECT_EQ(price.host + price.recomputed, HostBytes(Options()));
  const double rows = 2 * 64 * 64 + 8 * 64 + 4 * 64 * 128 + 8 * 128;
  EXPECT_NEAR(price.recompute_s, 0.5 * 4 * 8 * 8 * 64 / (rows + 2 * 64 * 128),
              1e-9);
}

// In each of 3 layers, 4 qkv segments and 10 blocks (4 diagonal) run again.
TEST(StepPrice, ChunksThatRunAgainCostTheirSegments) {
  StreamOptions options = Options();
  options.rerun_chunks = 4;
  options.fractions = DropFree(options.model, {});
  StreamOptions all = options;
  all.rerun_chunks = 0;
  const StepPrice with = Price(options), without = Price(all);
  EXPECT_EQ(with.recompute_s - without.recompute_s, 3 * (4 + 4 + 6));
  EXPECT_EQ(with.recomputed - without.recomputed,
            HostBytes(all) - HostBytes(options));
  EXPECT_GT(with.length_gain(), without.length_gain());
}

TEST(StepPrice, KeptRowsAreInHbmAndNotComputedAgain) {
  StreamOptions options = Options();
  options.fractions = KeepEverything(options.model);
  const StepPrice price = Price(options);
  EXPECT_EQ(price.hbm, KeptBytes(options));
  EXPECT_EQ(price.recomputed, Bytes(0));
  EXPECT_EQ(price.recompute_s, 0);
}

}  // namespace
}  // namespace sluice::stream
