// Tests what a rank's watch prints about a request to stop, and what it costs.
// The request belongs to the process and stays, so there is only one test of
// it.
#include "client/train/watch/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "absl/time/clock.h"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;

// Guards against a run that ends before the watch's thread has printed why
// (seen on a busy CI machine).
TEST(RankWatch, ARequestedStopIsPrintedBeforeTheRunEnds) {
  ::testing::internal::CaptureStderr();
  auto watch = std::make_unique<RankWatch>(RankWatch::Options{
      .speaks = true, .launched = true, .steps = 10, .save = "out/run"});
  EXPECT_FALSE(watch->HearStop(7));
  RequestStop();
  EXPECT_TRUE(watch->HearStop(8));
  watch.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("ending after step 7, then saving to out/run"));
}

TEST(RankWatch, ItsThreadSleepsBetweenItsChecks) {
  const RankWatch watch({});
  const std::clock_t before = std::clock();
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 2);
}

}  // namespace
}  // namespace sluice::train
