// Tests what a run prints about itself: a step's progress, the step's expected
// time, and the effect of a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "client/train/announce.h"
#include "client/train/watch/rank_page.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

using ::sluice::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs the forward of a layer of two chunks.
void RunForward(StepTracker& tracker) {
  for (const int chunk : {0, 1}) {
    for (const char* kind :
         {"qkv.forward.full", "block.diagonal.forward.full"}) {
      tracker.Began(kind);
      tracker.Ended(kind);
    }
    if (chunk == 1) {
      tracker.Began("block.offdiagonal.forward.full");
      tracker.Ended("block.offdiagonal.forward.full");
    }
  }
}

TEST(StepTracker, KnowsLayerAndChunkFromTheOrderOfSegments) {
  StepTracker tracker(3, 2, {});
  tracker.BeginStep(1);
  tracker.Began("embed.forward.full");
  EXPECT_EQ(tracker.place().layer, -1);
  RunForward(tracker);
  EXPECT_EQ(tracker.place().layer, 0);
  RunForward(tracker);
  EXPECT_EQ(tracker.place().layer, 1);
  EXPECT_EQ(tracker.place().chunk, 1);
  EXPECT_FALSE(tracker.place().backward);
  tracker.Began("loss.tail");
  EXPECT_EQ(tracker.place().layer, -1);
  tracker.Began("post.backward.full");
  EXPECT_EQ(tracker.place().layer, 2) << "backward begins at the last layer";
  EXPECT_EQ(tracker.place().chunk, 0);
  EXPECT_TRUE(tracker.place().backward);
  tracker.Began("qkv.recompute.full");
  EXPECT_EQ(tracker.place().chunk, 0);
  tracker.Began("post.backward.tail");
  tracker.Began("post.backward.full");
  EXPECT_EQ(tracker.place().layer, 1);
}

TEST(StepTracker, TheFractionIsOfCalibratedTimeOverAllSequences) {
  StepTracker tracker(1, 2,
                      {{"qkv.forward.full", {1, 2}},
                       {"block.diagonal.forward.full", {0.5, 2}},
                       {"block.offdiagonal.forward.full", {1, 1}}});
  tracker.BeginStep(2);
  EXPECT_EQ(tracker.fraction(), 0);
  tracker.Began("qkv.forward.full");
  EXPECT_EQ(tracker.fraction(), 0) << "the segment has not ended yet";
  tracker.Ended("qkv.forward.full");
  EXPECT_DOUBLE_EQ(tracker.fraction(), 0.125);
  tracker.BeginSequence(1);
  EXPECT_DOUBLE_EQ(tracker.fraction(), 0.5);
  RunForward(tracker);
  EXPECT_DOUBLE_EQ(tracker.fraction(), 1);
  tracker.Ended("qkv.forward.full");
  EXPECT_DOUBLE_EQ(tracker.fraction(), 1)
      << "more segments than planned still count as 100 %";
}

TEST(StepTracker, EachSequenceBeginsAtTheFirstLayer) {
  StepTracker tracker(3, 2, {});
  tracker.BeginStep(2);
  RunForward(tracker);
  tracker.BeginSequence(1);
  tracker.Began("qkv.forward.full");
  EXPECT_EQ(tracker.place().layer, 0);
  EXPECT_EQ(tracker.place().chunk, 0);
}

TEST(RankPage, AnotherProcessReadsWhatTheRankWrites) {
  const TempDir dir;
  auto rank = RankPage::Open(dir.File("page"));
  auto watcher = RankPage::Open(dir.File("page"));
  ASSERT_TRUE(rank.ok() && watcher.ok());
  EXPECT_EQ((*watcher)->Read().events, 0u);
  StepTracker tracker(8, 64, {{"qkv.forward.full", {1, 512}}});
  (*rank)->BeginStep(12, 100);
  (*rank)->Enter(RankPhase::kStep, 1000);
  tracker.Began("qkv.forward.full");
  (*rank)->SetSegment("qkv.forward.full", tracker);
  (*rank)->SetCollective("all-to-all");
  const RankSample sample = (*watcher)->Read();
  EXPECT_EQ(Where(sample),
            "step 12, layer 1 of 8, chunk 1 of 64, forward, in "
            "qkv.forward.full, in all-to-all");
  EXPECT_EQ(sample.collectives, 1u);
  const uint64_t before = sample.events;
  (*rank)->SetCollective("");
  EXPECT_GT((*watcher)->Read().events, before);
  EXPECT_EQ((*watcher)->Read().collectives, 1u);
  EXPECT_EQ((*watcher)->Read().waits_in, "");
}

RankSample HalfDone() {
  RankSample sample;
  sample.phase = RankPhase::kStep;
  sample.step = 3;
  sample.place = {1, 4, true};
  sample.layers = 4;
  sample.chunks = 8;
  sample.segment = "post.backward.full";
  sample.fraction = 0.5;
  sample.phase_began_s = 100;
  return sample;
}

TEST(Words, ProgressSaysWhereHowMuchAndHowLong) {
  EXPECT_EQ(ProgressText(HalfDone(), 20, 130),
            "step 3/20  50 %  layer 2 of 4, chunk 5 of 8, backward  about 30 s "
            "left");
  RankSample planning;
  planning.phase = RankPhase::kPlanning;
  EXPECT_EQ(ProgressText(planning, 20, 12),
            "waiting for the daemon's plan, 12 s so far");
}

TEST(Words, OutsideChunksProgressNamesThePartOfTheStep) {
  RankSample sample = HalfDone();
  sample.place = {};
  sample.segment = "loss.full";
  EXPECT_EQ(ProgressText(sample, 20, 130),
            "step 3/20  50 %  in loss  about 30 s left");
}

TEST(Words, TimeLeftFollowsTheStepsProgressOnceThereIsAny) {
  RankSample sample = HalfDone();
  sample.expected_s = 1000;
  EXPECT_DOUBLE_EQ(SecondsLeft(sample, 110), 10);
  sample.fraction = 0;
  EXPECT_DOUBLE_EQ(SecondsLeft(sample, 110), 990);
  sample.expected_s = 0;
  EXPECT_LT(SecondsLeft(sample, 110), 0) << "the time left is unknown";
}

TEST(Words, TheEffectOfASignalIsPrinted) {
  EXPECT_EQ(StopText({SIGINT, 3, "out/run", true}, HalfDone(), 130),
            "Ctrl-C: finishing step 3 (about 30 s left), then saving to "
            "out/run; press Ctrl-C again to stop at once");
  EXPECT_EQ(StopText({SIGTERM, 3, "", true}, HalfDone(), 130),
            "SIGTERM: finishing step 3 (about 30 s left), then ending without "
            "a checkpoint (no --save); a second SIGTERM stops at once");
  // The signal came too late for this step.
  EXPECT_EQ(StopText({SIGINT, 4, "out/run", false}, HalfDone(), 130),
            "Ctrl-C: ending after step 4, then saving to out/run");
  EXPECT_THAT(StopText({SIGINT, 0, "out/run", true}, RankSample(), 130),
              HasSubstr("ending before the first step"));
  EXPECT_THAT(StopText({0, 3, "out/run", true}, HalfDone(), 130),
              HasSubstr("The daemon evicts this job: finishing step 3"));
}

TEST(Words, DurationsAreShort) {
  EXPECT_EQ(Duration(0.0034), "3 ms");
  EXPECT_EQ(Duration(0.25), "0.2 s");
  EXPECT_EQ(Duration(34.4), "34 s");
  EXPECT_EQ(Duration(300), "5 min");
  EXPECT_EQ(Duration(7800), "2 h 10 min");
}

BannerFacts Facts() {
  BannerFacts f;
  f.options.model.name = "llama";
  f.options.model.layers = 4;
  f.options.model.hidden = 256;
  f.options.dtype = Dtype::kBf16;
  f.attention = "cudnn";
  f.ranks = 2;
  f.options.seq_len = 32768;
  f.options.chunk = 512;
  f.classes = {{"layer_input", {0, 1, 0}, ""},
               {"q", {0, 0.4, 0.6}, ""},
               {"norm1", {0, 0, 1}, ""},
               {"k", {0, 1, 0}, ""},
               {"ffn_up", {1, 0, 0}, ""}};
  f.gpu = "GPU 1";
  f.leased = MiB(36);
  f.gpu_total = MiB(64);
  f.options.hbm = MiB(36);
  f.used = MiB(20);
  f.transient = MiB(9);
  f.host = MiB(24);
  f.host_limit = MiB(128);
  f.compute_s = 3.2;
  f.copy_s = 1.1;
  return f;
}

std::string Joined(const BannerFacts& facts) {
  std::string text;
  for (const std::string& line : Banner(facts)) text += line + "\n";
  return text;
}

TEST(Banner, SaysModelPlanMemoryAndTime) {
  const std::string text = Joined(Facts());
  EXPECT_THAT(text, HasSubstr("parameters: llama, 4 layers, hidden 256"));
  EXPECT_THAT(text, HasSubstr("bf16, attention by cudnn"));
  EXPECT_THAT(text, HasSubstr("swapped: layer_input, k; 40 % swapped, 60 % "
                              "recomputed: q; recomputed: norm1; kept on the "
                              "GPU: ffn_up"));
  EXPECT_THAT(text, HasSubstr("GPU 1: 36 MiB of 64 MiB leased per rank; 20 MiB "
                              "in use, 9 MiB more in a step; host 24 MiB of "
                              "128 MiB"));
  EXPECT_THAT(text, HasSubstr("32768 tokens, 64 chunks of 512; about 3.2 s "
                              "expected (compute 3.2 s, copies beside it 1.1 "
                              "s"));
}

TEST(Banner, OneLineSaysWhatThePlanPaysForMemory) {
  BannerFacts f = Facts();
  f.options.batch = 2;
  f.price = {MiB(100), MiB(300), MiB(800), 0.4};
  EXPECT_THAT(Joined(f),
              HasSubstr("100 MiB in HBM, 300 MiB in host memory, 800 MiB "
                        "computed again in 0.8 s (25 % of the step's compute) "
                        "for 3 times the tokens\n"));
  f.price = {MiB(100), MiB(300), Bytes(0), 0};
  EXPECT_THAT(Joined(f), HasSubstr("none computed again"));
}

TEST(Banner, UnknownFactsAreNotGuessed) {
  BannerFacts f = Facts();
  f.options.method = Method::kRecompute;
  f.classes.clear();
  f.transient.reset();
  f.compute_s = f.copy_s = 0;
  f.host = Bytes(0);
  f.options.hbm = Bytes(0);
  const std::string text = Joined(f);
  EXPECT_THAT(text, HasSubstr("layers recomputed"));
  EXPECT_THAT(text, HasSubstr("activations need is not known"));
  EXPECT_THAT(text, HasSubstr("time is not known before the first"));
  EXPECT_THAT(text, HasSubstr("--hbm SIZE takes less"));
  EXPECT_THAT(text, Not(HasSubstr("expected")));
}

TEST(Banner, EachBaselineSaysWhereItsActivationsAre) {
  BannerFacts f = Facts();
  f.classes.clear();
  for (const auto& [method, says] :
       {std::pair{Method::kKeepAll, "every activation kept on the GPU"},
        std::pair{Method::kRecompute, "layer inputs kept on the GPU"},
        std::pair{Method::kAlst, "layer inputs in host memory"}}) {
    f.options.method = method;
    EXPECT_THAT(Joined(f), HasSubstr(std::string("plan    ") + says));
  }
}

TEST(Banner, ExpectedSecondsAreSegmentsTimesExecutionsAndTheLongerCopyStream) {
  plan::RankProfile profile;
  profile.kinds[0].layers = 2;
  profile.segments = {{"a", {}, 0.5, 4}, {"b", {}, 0.25, 2}};
  profile.kinds[0].forward_h2d_fixed = Bytes(100);
  profile.kinds[0].backward_d2h_fixed = Bytes(300);
  profile.classes.push_back({.name = "norm1", .bytes_per_layer = Bytes(1000)});
  plan::RankPlan plan;
  plan.classes = {{"norm1", {0, 0.5, 0.5}, ""}};
  EXPECT_DOUBLE_EQ(ComputeSeconds(profile), 2.5);
  EXPECT_DOUBLE_EQ(CopySeconds(profile, plan, 1000, 1000), 1.6);
  EXPECT_DOUBLE_EQ(CopySeconds(profile, plan, 0, 0), 0)
      << "0 is a link without a limit";
}

TEST(Banner, CountsAreShort) {
  EXPECT_EQ(Count(256), "256");
  EXPECT_EQ(Count(1.5e6), "1.5M");
  EXPECT_EQ(Count(124e6), "124M");
  EXPECT_EQ(Count(6.9e9), "6.9B");
}

}  // namespace
}  // namespace sluice::train
