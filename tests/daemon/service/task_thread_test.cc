// Tests the end of a thread that runs tasks for the loop.
#include "daemon/service/threads/task_thread.h"

#include <future>

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

TEST(TaskThread, FinishWaitsForTheRunningTaskUntilItsTimeout) {
  TaskThread thread("task");
  std::promise<void> runs, ends;
  thread.Run([&] {
    runs.set_value();
    ends.get_future().wait();
  });
  runs.get_future().wait();
  EXPECT_FALSE(thread.Finish(absl::Milliseconds(1)));
  ends.set_value();
  EXPECT_TRUE(thread.Finish(absl::Seconds(20)));
}

}  // namespace
}  // namespace sluice::daemon
