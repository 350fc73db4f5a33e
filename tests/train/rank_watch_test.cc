// Tests what a rank's watch prints about a request to stop. The request belongs
// to the process and stays, so there is only one test of it.
#include "client/train/watch/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::train
