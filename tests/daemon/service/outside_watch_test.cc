// Tests the queries about memory held outside leases on a simulated GPU, at a
// start and at a takeover.
#include "daemon/service/outside_watch.h"

#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

class OutsideWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const device::SimConfig node = {.gpus = {{MiB(1), "link", NumaIndex(0)}},
                                    .links = {{"link", 0, 0}},
                                    .host_memory = MiB(1)};
    ASSERT_THAT(device::CreateSimNode(directory_.path(), node),
                testing::IsOk());
    auto driver = device::OpenSimDriver(directory_.path());
    ASSERT_THAT(driver, testing::IsOk());
    driver_ = *std::move(driver);
    auto loop = Loop::Make(&clock_);
    ASSERT_THAT(loop, testing::IsOk());
    loop_ = *std::move(loop);
    watch_ = std::make_unique<OutsideWatch>(
        driver_.get(), NodeConfig(), loop_.get(), [this](const HeldOutside&) {
          ++told_;
          loop_->Stop();
        });
  }

  testing::TempDir directory_;
  MonotonicClock clock_;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<Loop> loop_;
  int told_ = 0;
  std::unique_ptr<OutsideWatch> watch_;  // last: its thread posts to the loop
};

TEST_F(OutsideWatchTest, AStartAsksBeforeTheLoopRuns) {
  watch_->Start();
  EXPECT_EQ(told_, 1);
}

TEST_F(OutsideWatchTest, ATakeoverAsksLaterWithoutWaiting) {
  const absl::Time begin = absl::Now();
  watch_->GoOn();
  loop_->RunWhatIsThere(absl::ZeroDuration());
  // The query comes after 250 ms; this test may have been delayed for as long.
  if (absl::Now() - begin < absl::Milliseconds(250)) {
    EXPECT_EQ(told_, 0);
  }
  loop_->Run();
  EXPECT_EQ(told_, 1);
}

}  // namespace
}  // namespace sluice::daemon
