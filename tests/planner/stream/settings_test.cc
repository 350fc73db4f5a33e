// Tests the choice of settings: which are considered, which fit, which is
// faster.
#include "planner/stream/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"

namespace sluice::stream {
namespace {

using ::testing::ElementsAre;

constexpr double kNever = std::numeric_limits<double>::infinity();

SettingsQuestion Question(int64_t seq_len, int64_t kv_heads = 8) {
  SettingsQuestion q;
  q.stream.model = Llama({.layers = 4,
                          .hidden = 256,
                          .heads = 8,
                          .kv_heads = kv_heads,
                          .ffn = 688,
                          .vocab = 1024});
  q.stream.alpha = -1;
  q.seq_len = seq_len;
  q.hbm = GiB(1);
  q.host = GiB(8);
  return q;
}

// Returns recorded segments that run at 1e11 operations per second.
std::vector<plan::SegmentKind> Recorded(const SettingsQuestion& q,
                                        int64_t chunk) {
  const auto rows = static_cast<double>(chunk);
  const ModelShape& m = q.stream.model;
  const double h = double(m.hidden), f = double(m.ffn);
  const std::map<Segment, double> operations = {
      {Segment::kQkvForward, 6 * rows * h * h},
      {Segment::kDiagonalForward, 2 * rows * rows * h},
      {Segment::kOffdiagonalForward, 4 * rows * rows * h},
      {Segment::kPostForward, 2 * rows * h * (h + 3 * f)},
      {Segment::kPostBackward, 4 * rows * h * (h + 3 * f)},
      {Segment::kDiagonalBackward, 5 * rows * rows * h},
      {Segment::kOffdiagonalBackward, 10 * rows * rows * h},
      {Segment::kQkvBackward, 12 * rows * h * h}};
  std::vector<plan::SegmentKind> kinds;
  for (const auto& [segment, count] : operations) {
    kinds.push_back({.name = KindOf(segment, true), .seconds = count / 1e11});
  }
  return kinds;
}

std::vector<int64_t> Tried(const SettingsQuestion& q,
                           const std::map<int64_t, double>& seconds) {
  std::vector<int64_t> tried;
  std::vector<ChunkTrial> trials;
  while (const auto next = ChooseChunk(ChunksOf(q), trials).next) {
    tried.push_back(*next);
    const auto found = seconds.find(*next);
    trials.push_back({*next, found != seconds.end() ? found->second : kNever});
  }
  return tried;
}

TEST(ChunksOf, DoublesUntilALargerChunkIsSlower) {
  EXPECT_THAT(Tried(Question(1 << 20), {{512, 10}, {1024, 8}, {2048, 9}}),
              ElementsAre(512, 1024, 2048));
  EXPECT_THAT(Tried(Question(2000), {{512, 10}, {1024, 8}, {2000, 7}}),
              ElementsAre(512, 1024, 2000));
}

TEST(ChunksOf, HalvesIfTheFirstIsBestOrDoesNotFit) {
  EXPECT_THAT(Tried(Question(1 << 20), {{256, 9}, {512, 10}, {1024, 12}}),
              ElementsAre(512, 1024, 256, 128));
  EXPECT_THAT(Tried(Question(1 << 20), {{128, 9}}),
              ElementsAre(512, 256, 128, 64));
  EXPECT_THAT(Tried(Question(1 << 20), {}), ElementsAre(512, 256, 128, 64));
}

TEST(ChunksOf, OneSizeIsTriedIfItIsGivenOrTheSequenceIsShort) {
  SettingsQuestion q = Question(1 << 20);
  q.chunk = 300;
  EXPECT_THAT(Tried(q, {{300, 1}}), ElementsAre(300));
  EXPECT_THAT(Tried(Question(40), {{40, 1}}), ElementsAre(40));
}

TEST(Settings, GivenSettingsAreNotVaried) {
  SettingsQuestion q = Question(4096);
  // One resident setting, and 2 orders x 3 depths x 1, 2 or 4 layers that run
  // again together.
  EXPECT_EQ(SettingsOf(q, 512).size(), 1 + 2 * 3 * 3);
  EXPECT_TRUE(SettingsOf(q, 512).front().resident);
  q.prefetch = 3;
  q.order = BackwardOrder::kQueriesOuter;
  // Half of the rows must be swapped, so nothing is resident and no chunk runs
  // again.
  q.stream.alpha = 0.5;
  EXPECT_THAT(SettingsOf(q, 512),
              ElementsAre(Settings{512, 3, BackwardOrder::kQueriesOuter}));
}

TEST(Settings, RowsAreKeptInHbmIfTheyMayBeAndAlphaIsOpen) {
  const auto norm1 = [](bool may_keep, double alpha) {
    SettingsQuestion q = Question(4096);
    q.may_keep = may_keep;
    q.stream.alpha = alpha;
    return StreamOf(q, {.chunk = 512}).fractions.at("norm1");
  };
  EXPECT_EQ(norm1(true, -1), (ClassFractions{1, 0}));
  EXPECT_EQ(norm1(false, -1), (ClassFractions{0, 1}));
  EXPECT_EQ(norm1(true, 0.5), (ClassFractions{0, 0.5}));
}

// If host memory is short, the last chunks stay in HBM, and as few of the first
// chunks as possible run again. With still less memory more layers run again
// together.
TEST(Settings, WithLessHostMemoryMoreChunksRunAgain) {
  SettingsQuestion q = Question(1 << 20);
  q.stream.model.layers = 8;
  q.hbm = MiB(80);
  q.host = GiB(64);
  Settings settings{.chunk = 512, .prefetch = 1};
  const StreamOptions all = StreamOf(q, settings);
  EXPECT_EQ(all.rerun_chunks, 0);
  StreamOptions least = all;
  least.alpha = 0;
  least.fractions = DropFree(q.stream.model, {});
  const Bytes swapped = HostBytes(least);
  int64_t before = 0;
  double kept = 0;
  for (const int part : {98, 92, 85, 75}) {
    q.host = swapped / 100 * part;
    const StreamOptions options = StreamOf(q, settings);
    EXPECT_LE(HostBytes(options), q.host);
    EXPECT_EQ(Validate(options), absl::OkStatus());
    EXPECT_GT(options.rerun_chunks, before) << part;
    before = options.rerun_chunks;
    kept = Settled(settings, options).kept;
    EXPECT_GT(kept, 0);
    StreamOptions fewer = options;
    --fewer.rerun_chunks;
    EXPECT_GT(HostBytes(fewer), q.host);
  }
  // 64 % of `swapped` is too little even for a rerun of one layer at a time.
  q.host = swapped / 100 * 64;
  EXPECT_GT(HostBytes(StreamOf(q, settings)), q.host);
  settings.rerun_layers = 2;
  EXPECT_LE(HostBytes(StreamOf(q, settings)), q.host);
}

// Chunks run again only if nothing of a free class must be kept or swapped.
TEST(Settings, LayersRunAgainTogetherOnlyIfChunksMayRunAgain) {
  const auto most_layers = [](const FractionMap& fractions, double alpha = -1) {
    SettingsQuestion q = Question(4096);
    q.stream.fractions = fractions;
    q.stream.alpha = alpha;
    int64_t most = 0;
    for (const Settings& s : SettingsOf(q, 512)) {
      most = std::max(most, s.rerun_layers);
    }
    return most;
  };
  EXPECT_EQ(most_layers({}), 4);
  EXPECT_EQ(most_layers({}, 0), 4);
  EXPECT_EQ(most_layers({}, 0.25), 1);
  EXPECT_EQ(most_layers({{"norm1", {0, 0}}, {"lse", {0, 1}}}), 4);
  EXPECT_EQ(most_layers({{"norm1", {0, 0.5}}}), 1);
  EXPECT_EQ(most_layers({{"norm1", {0.5, 0}}}), 1);
}

TEST(Settings, TheTextNamesEachSetting) {
  const Settings some{.chunk = 512,
                      .prefetch = 3,
                      .order = BackwardOrder::kQueriesOuter,
                      .rerun_layers = 4,
                      .rerun_chunks = 7,
                      .kept = 0.25};
  const std::string text = ToString(some);
  for (const char* each :
       {"512", "3", "queries", "25 %", "7 chunks", "4 lay"}) {
    EXPECT_THAT(text, testing::HasSubstr(each));
  }
  const std::string none = ToString({.chunk = 64, .prefetch = 2});
  EXPECT_THAT(none, testing::HasSubstr("keys"));
  EXPECT_THAT(none, testing::Not(testing::HasSubstr("kept")));
  EXPECT_THAT(none, testing::Not(testing::HasSubstr("again")));
}

// Returns the fastest settings for a chunk size.
Settings Best(const SettingsQuestion& q, int64_t chunk,
              const LinkSpeeds& links) {
  Settings best;
  double least = kNever;
  for (const Settings& settings : SettingsOf(q, chunk)) {
    const double seconds =
        PredictSeconds(q, settings, Recorded(q, chunk), links);
    if (seconds < least) {
      least = seconds;
      best = settings;
    }
  }
  EXPECT_TRUE(std::isfinite(least));
  return best;
}

TEST(Settings, EverythingIsResidentIfItFits) {
  SettingsQuestion q = Question(4096);
  EXPECT_TRUE(Best(q, 1024, {1e9, 1e9}).resident);
  q.hbm = MiB(96);
  EXPECT_FALSE(Best(q, 1024, {1e9, 1e9}).resident);
}

TEST(Settings, OverASlowLinkFewKvHeadsMakeQueriesTheOuterLoop) {
  SettingsQuestion q = Question(1 << 17, /*kv_heads=*/1);
  q.hbm = MiB(64);
  EXPECT_EQ(Best(q, 512, {1e8, 1e8}).order, BackwardOrder::kQueriesOuter);
}

TEST(Settings, ASlowLinkNeedsMoreSlots) {
  SettingsQuestion q = Question(1 << 17);
  q.hbm = MiB(64);
  EXPECT_GT(Best(q, 512, {4e9, 4e9}).prefetch, 1);
}

TEST(Settings, ATimeIsPredictedOnlyForSettingsThatFit) {
  for (const int64_t seq_len : {1000, 40000, 300000}) {
    SettingsQuestion q = Question(seq_len);
    q.hbm = MiB(80);
    q.host = GiB(1);
    for (const Settings& settings : SettingsOf(q, 512)) {
      const StreamOptions options = StreamOf(q, settings);
      const bool fits =
          HostBytes(options) <= q.host &&
          RingBytes(options) + KeptBytes(options) + TransientBytes(options) <=
              q.hbm;
      EXPECT_EQ(std::isfinite(
                    PredictSeconds(q, settings, Recorded(q, 512), {1e9, 1e9})),
                fits)
          << ToString(settings);
    }
  }
}

TEST(Settings, HostMemoryIsLeastIfAllChunksRunAgain) {
  EXPECT_EQ(LeastHost(Question(1 << 15), {.chunk = 512}).rerun_chunks, 64);
}

// Recomputing dropped rows takes time, and so does swapping over a slow link.
TEST(StepTime, GrowsWithRecomputationAndWithSlowerLinks) {
  SettingsQuestion q = Question(1 << 15);
  const auto recorded = Recorded(q, 512);
  StreamOptions options = q.stream;
  options.layout = ChunkLayout(q.seq_len, 512, 1);
  options.alpha = 1;
  const double swapped = StepSeconds(options, recorded, {});
  EXPECT_GT(StepSeconds(options, recorded, {1e8, 1e8}), swapped);
  options.alpha = 0;
  EXPECT_GT(StepSeconds(options, recorded, {}), swapped);
}

}  // namespace
}  // namespace sluice::stream
