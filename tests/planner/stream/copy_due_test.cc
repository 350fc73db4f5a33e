// Compares the slack of copies with values computed by hand. The segments take
// powers of two seconds, so that each sum shows its terms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "planner/stream/profile.h"
#include "planner/stream/segments.h"

namespace sluice::stream {
namespace {

std::vector<plan::SegmentKind> RecordedSegments(bool full) {
  const std::map<Segment, double> seconds = {
      {Segment::kEmbedForward, 1},       {Segment::kQkvForward, 2},
      {Segment::kDiagonalForward, 4},    {Segment::kOffdiagonalForward, 8},
      {Segment::kPostForward, 16},       {Segment::kLoss, 32},
      {Segment::kPostBackward, 64},      {Segment::kQkvRecompute, 128},
      {Segment::kDiagonalBackward, 256}, {Segment::kOffdiagonalBackward, 512},
      {Segment::kQkvBackward, 1024},     {Segment::kEmbedBackward, 2048}};
  std::vector<plan::SegmentKind> kinds;
  for (const auto& [segment, each] : seconds) {
    kinds.push_back({.name = KindOf(segment, full), .seconds = each});
  }
  return kinds;
}

std::map<std::string, double> Slack(int64_t chunks, int prefetch_depth,
                                    bool full = true) {
  const StreamOptions options{.layout = ChunkLayout(16 * chunks, 16, 1),
                              .prefetch_depth = prefetch_depth};
  std::map<std::string, double> slack;
  for (const CopyDue& each : CopiesDue(options, RecordedSegments(full))) {
    EXPECT_TRUE(slack.emplace(each.label, each.slack_seconds).second)
        << each.label << " twice";
  }
  return slack;
}

TEST(CopyDue, ACopysSlackIsTheComputeThatUsesTheOtherSlots) {
  auto slack = Slack(4, /*prefetch_depth=*/3);
  EXPECT_EQ(slack.at("x"), 2 + 4 + 16);
  EXPECT_EQ(slack.at("layer out"), 2 + 4 + 16);
  EXPECT_EQ(slack.at("k, v"), 2 * 8);
  EXPECT_EQ(slack.at("saved rows"), 64 + 128);
  EXPECT_EQ(slack.at("outer chunk"), 256 + 1024);
  EXPECT_EQ(slack.at("inner chunk"), 2 * 512);
  EXPECT_EQ(slack.at("gradients of inner chunk"), 2 * 512);
  EXPECT_EQ(slack.at("y"), 32);
  EXPECT_EQ(slack.at("embedding out"), 1);
  EXPECT_EQ(slack.at("dX"), 2048);
}

TEST(CopyDue, CopiesInOneSlotAndAllCopiesOfOneChunkHaveNoSlack) {
  auto slack = Slack(4, /*prefetch_depth=*/1);
  EXPECT_EQ(slack.at("k, v"), 0);
  EXPECT_EQ(slack.at("inner chunk"), 0);
  EXPECT_GT(slack.at("x"), 0);
  slack = Slack(1, /*prefetch_depth=*/1);
  for (const auto& [label, seconds] : slack) EXPECT_EQ(seconds, 0) << label;
}

TEST(CopyDue, WithoutFullChunksTheTailsTimesAreUsed) {
  EXPECT_EQ(Slack(4, 3, /*full=*/false), Slack(4, 3, /*full=*/true));
  const StreamOptions options{.layout = ChunkLayout(64, 16, 1)};
  for (const CopyDue& each : CopiesDue(options, {})) {
    EXPECT_EQ(each.slack_seconds, 0);
  }
}

}  // namespace
}  // namespace sluice::stream
