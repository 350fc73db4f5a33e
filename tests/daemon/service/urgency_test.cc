#include "daemon/service/threads/task_thread.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kWindow = Urgency::kWindow;

class UrgencyTest : public ::testing::Test {
 protected:
  // Lets a window pass in which the thread computed for this share of a core.
  // Returns whether the thread is urgent.
  bool After(double share) {
    now_ += kWindow;
    cpu_ += share * kWindow;
    return urgency_.IsUrgent(now_, cpu_);
  }

  absl::Time now_ = absl::UnixEpoch();
  absl::Duration cpu_ = absl::Hours(1);  // used before the first call
  Urgency urgency_;
};

TEST_F(UrgencyTest, AThreadIsUrgentFromTheStart) {
  EXPECT_TRUE(urgency_.IsUrgent(now_, cpu_));
  EXPECT_EQ(urgency_.next(), now_ + kWindow);
}

TEST_F(UrgencyTest, AThreadIsNotUrgentWhileItIsKeptBusy) {
  EXPECT_TRUE(After(0.5));
  EXPECT_TRUE(After(0.7));
  EXPECT_FALSE(After(0.8));
  EXPECT_FALSE(After(1));
  EXPECT_TRUE(After(0.1));
}

TEST_F(UrgencyTest, UrgencyDoesNotChangeWithinAWindow) {
  EXPECT_TRUE(After(0));
  now_ += 0.9 * kWindow;
  cpu_ += 0.9 * kWindow;
  EXPECT_TRUE(urgency_.IsUrgent(now_, cpu_));
  now_ += 0.1 * kWindow;
  EXPECT_FALSE(urgency_.IsUrgent(now_, cpu_));
}

// After a sleep, the thread's share of a core is taken over the whole time
// since the last check.
TEST_F(UrgencyTest, TheTimeOfASleepCounts) {
  EXPECT_TRUE(After(0));
  now_ += absl::Seconds(10);
  cpu_ += absl::Seconds(1);
  EXPECT_TRUE(urgency_.IsUrgent(now_, cpu_));
}

}  // namespace
}  // namespace sluice::daemon
