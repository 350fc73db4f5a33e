#include "proto/base/mutex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice {
namespace {

TEST(Mutex, AMutexLetsOneThreadInAtATime) {
  Mutex mutex;
  int inside = 0, most = 0, sum = 0;
  const auto work = [&] {
    for (int i = 0; i < 10000; ++i) {
      const MutexLock lock(mutex);
      most = std::max(most, ++inside);
      ++sum;
      --inside;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(sum, 20000);
}

TEST(MutexLock, ALockCanBeUnlockedAndLockedAgain) {
  Mutex mutex;
  bool seen = false;
  {
    MutexLock lock(mutex);
    lock.Unlock();
    std::thread([&] {
      const MutexLock other(mutex);
      seen = true;
    }).join();
    lock.Lock();
    EXPECT_TRUE(seen);
  }
  const MutexLock free_again(mutex);
}

TEST(MutexLock, AnUnlockedLockIsNotUnlockedByItsDestructor) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.Unlock();
  }
  const MutexLock free_still(mutex);
}

TEST(CondVar, NotifyWakesAWaitingThread) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  std::thread other([&] {
    const MutexLock lock(mutex);
    while (turn != 1) changed.Wait(mutex);
    turn = 2;
    changed.NotifyAll();
  });
  {
    const MutexLock lock(mutex);
    turn = 1;
    changed.NotifyOne();
    while (turn != 2) changed.Wait(mutex);
  }
  other.join();
}

TEST(CondVar, AWaitEndsAtItsDeadlineWithTheLockHeld) {
  Mutex mutex;
  CondVar changed;
  const auto deadline = CondVar::Deadline(absl::Milliseconds(5));
  {
    const MutexLock lock(mutex);
    while (changed.WaitUntil(mutex, deadline)) {
    }
    EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  }
  const MutexLock free_again(mutex);
}

TEST(CondVar, AnInfiniteTimeoutIsFarInTheFuture) {
  EXPECT_GT(CondVar::Deadline(absl::InfiniteDuration()),
            std::chrono::steady_clock::now() + std::chrono::hours(24));
  EXPECT_LT(CondVar::Deadline(-absl::Seconds(1)),
            std::chrono::steady_clock::now());
}

}  // namespace
}  // namespace sluice
