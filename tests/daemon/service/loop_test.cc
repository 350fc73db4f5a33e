#include "daemon/service/threads/loop.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <thread>

#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

// A loop that does not run yet, and a descriptor that can be made readable.
class LoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Make(&clock_);
    ASSERT_THAT(loop, testing::IsOk());
    loop_ = *std::move(loop);
    loop_->Add(event_.get(), EPOLLIN | EPOLLET, [this](uint32_t) { ++seen_; });
  }
  void Signal() { eventfd_write(event_.get(), 1); }

  MonotonicClock clock_;
  UniqueFd event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<Loop> loop_;
  int seen_ = 0;
};

TEST_F(LoopTest, RunWhatIsThereHandlesPendingEvents) {
  int posted = 0, work = 3;
  loop_->Post([&] { ++posted; });
  loop_->SetWork([&] { return --work > 0; });
  Signal();
  loop_->RunWhatIsThere(absl::Seconds(60));
  EXPECT_EQ(seen_, 1);
  EXPECT_EQ(posted, 1);
  EXPECT_LE(work, 0);
}

TEST_F(LoopTest, RunWhatIsThereDoesNotWait) {
  loop_->SetTimer([] { return absl::InfiniteFuture(); }, [] { FAIL(); });
  loop_->RunWhatIsThere(absl::InfiniteDuration());
  EXPECT_EQ(seen_, 0);
}

TEST_F(LoopTest, RunWhatIsThereLeavesEndlessWorkToRun) {
  loop_->SetWork([] { return true; });
  loop_->RunWhatIsThere(absl::Milliseconds(1));
  Signal();
  loop_->Stop();
  loop_->Run();
  EXPECT_EQ(seen_, 1);
}

// Runs the loop on a new thread: the real-time priority that the thread gets
// ends with it.
void RunOnThread(Loop& loop) {
  std::thread thread([&loop] { loop.Run(); });
  thread.join();
}

bool MayHaveRealTime() {
  bool may = false;
  std::thread([&may] { may = GoBeforeOthers(); }).join();
  return may;
}

TEST_F(LoopTest, ALoopHasRealTimePriorityUntilItIsKeptBusy) {
  if (!MayHaveRealTime()) GTEST_SKIP() << "no real time for this user";
  Signal();  // wakes the loop
  loop_->BeUrgent();
  int first = -1, last = -1;
  loop_->SetWork([&] {
    last = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
    if (first == -1) first = last;
    if (last == SCHED_OTHER) loop_->Stop();
    return true;  // more work, without end
  });
  RunOnThread(*loop_);
  EXPECT_EQ(first, SCHED_FIFO);
  EXPECT_EQ(last, SCHED_OTHER);
}

TEST_F(LoopTest, ALoopHasNormalPriorityUnlessItIsUrgent) {
  int policy = -1;
  loop_->SetWork([&] {
    policy = sched_getscheduler(0);
    return false;
  });
  loop_->Stop();
  RunOnThread(*loop_);
  EXPECT_EQ(policy, SCHED_OTHER);
}

}  // namespace
}  // namespace sluice::daemon
