// Tests what a rank's watch prints about a request to stop, and its CPU time. A
// request stays until the process ends, so only one test makes a request.
#include "client/train/watch/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "absl/time/clock.h"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;

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

TEST(RankWatch, TheWatchSleepsBetweenItsChecks) {
  const RankWatch watch({});
  const std::clock_t before = std::clock();
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 2);
}

}  // namespace
}  // namespace sluice::train
