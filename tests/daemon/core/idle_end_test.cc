// Tests when the daemon of one user ends because it is idle.
#include "daemon/core/session_table.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kAfter = absl::Minutes(10);

absl::Time At(int seconds) { return kStart + absl::Seconds(seconds); }

TEST(IdleEnd, AnUnusedDaemonEndsAfterItsIdleTimeFromTheStart) {
  IdleEnd end(kAfter, kStart);
  EXPECT_EQ(end.At(false, At(5)), At(600));
  EXPECT_EQ(end.At(false, At(599)), At(600));
}

TEST(IdleEnd, ADaemonInUseDoesNotEnd) {
  IdleEnd end(kAfter, kStart);
  EXPECT_EQ(end.At(true, At(5000)), absl::InfiniteFuture());
}

TEST(IdleEnd, TheIdleTimeRestartsAfterEachLastRank) {
  IdleEnd end(kAfter, kStart);
  end.At(true, At(100));
  EXPECT_EQ(end.At(false, At(200)), At(800));
  EXPECT_EQ(end.At(false, At(700)), At(800));
  end.At(true, At(750));
  EXPECT_EQ(end.At(false, At(900)), At(1500));
}

TEST(IdleEnd, TheFirstRankHasAMinuteToAttach) {
  IdleEnd end(absl::ZeroDuration(), kStart);
  EXPECT_EQ(end.At(false, At(1)), At(60));
  end.At(true, At(2));
  EXPECT_EQ(end.At(false, At(3)), At(3));
}

}  // namespace
}  // namespace sluice::daemon
