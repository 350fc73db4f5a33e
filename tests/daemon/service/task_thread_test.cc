// Tasks of a thread beside the loop, and its end.
#include "daemon/service/threads/task_thread.h"

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

TEST(TaskThread, FinishWaitsForTheRunningTaskAsLongAsItMay) {
  TaskThread thread("task");
  absl::Notification runs, ends;
  thread.Run([&] {
    runs.Notify();
    ends.WaitForNotification();
  });
  runs.WaitForNotification();
  EXPECT_FALSE(thread.Finish(absl::Milliseconds(1)));
  ends.Notify();
  EXPECT_TRUE(thread.Finish(absl::Seconds(20)));
}

}  // namespace
}  // namespace sluice::daemon
