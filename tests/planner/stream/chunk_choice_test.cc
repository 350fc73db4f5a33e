// Tests which chunk sizes are measured, and which one is chosen.
#include "planner/stream/chunk_choice.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

struct Search {
  std::vector<int64_t> tried;
  int64_t rows = 0;
};
Search Searched(const ChunkRange& range,
                const std::function<ChunkTrial(int64_t)>& measure) {
  Search search;
  std::vector<ChunkTrial> trials;
  for (ChunkChoice choice = ChooseChunk(range, trials);;
       choice = ChooseChunk(range, trials)) {
    search.rows = choice.rows;
    if (!choice.next.has_value()) return search;
    trials.push_back(measure(*choice.next));
    search.tried.push_back(*choice.next);
  }
}

// Returns a trial with attention blocks that take `host` seconds each on the
// host, and `pair` seconds per pair of rows on the device.
ChunkTrial Blocks(int64_t rows, double host, double pair) {
  const double pairs = double(rows) * double(rows);
  return {rows, std::max(host / pairs, pair), host / pairs};
}

TEST(ChunkChoice, TheFastestChunkIsChosenIfNoSmallerOneIsAsFast) {
  const auto measure = [](int64_t rows) {
    return ChunkTrial{rows, std::abs(std::log2(double(rows) / 1024)) + 1};
  };
  const Search up =
      Searched({.first = 512, .least = 64, .most = 1 << 20}, measure);
  EXPECT_THAT(up.tried, ElementsAre(512, 1024, 2048));
  EXPECT_EQ(up.rows, 1024);
  EXPECT_EQ(
      Searched({.first = 4096, .least = 64, .most = 1 << 20}, measure).rows,
      1024);
}

TEST(ChunkChoice, ASmallerChunkWithinTheToleranceIsTaken) {
  const auto measure = [](int64_t rows) {
    return ChunkTrial{rows, rows == 128 ? 1.2 : rows == 256 ? 1.04 : 1.0};
  };
  EXPECT_EQ(Searched({128, 128, 1024, 0.05}, measure).rows, 256);
  EXPECT_EQ(Searched({128, 128, 1024, 0}, measure).rows, 512);
}

// For a block of 4,000 rows the host takes as long as the device.
TEST(ChunkChoice, AChunkGrowsUntilTheHostTakesAThirdOfTheDevicesTime) {
  const ChunkRange range = {128, 128, 65536, 0.05};
  const auto blocks = [](int64_t rows) { return Blocks(rows, 1, 1 / 16e6); };
  EXPECT_EQ(Searched(range, blocks).rows, 8192);
  // If no chunk takes the device longer than the host, the largest is chosen.
  EXPECT_EQ(
      Searched(range, [](int64_t rows) { return Blocks(rows, 1, 0); }).rows,
      65536);
}

TEST(ChunkChoice, AChunkThatDoesNotFitIsNotChosen) {
  const auto measure = [](int64_t rows) {
    return ChunkTrial{
        rows, rows <= 256 ? 1 : std::numeric_limits<double>::infinity()};
  };
  const Search search = Searched({512, 64, 1 << 20}, measure);
  EXPECT_THAT(search.tried, ElementsAre(512, 256, 128, 64));
  EXPECT_EQ(search.rows, 64);  // as fast as 256
}

}  // namespace
}  // namespace sluice::stream
