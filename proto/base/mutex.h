// The standard library's locks, with the attributes that clang's
// -Wthread-safety needs to prove that a member is accessed only under its lock
// (`./dev locks`). All locks of the tree use these classes.
//
// A member declares the lock that guards it (ABSL_GUARDED_BY(mutex_)), a
// function the locks that its caller must hold
// (ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_)). CondVar takes no predicate, because
// the analysis does not know which locks are held inside a lambda:
//
//   const MutexLock lock(mutex_);
//   while (queue_.empty()) changed_.Wait(mutex_);
//
// Not absl::Mutex: Debian's version (20220623) converts a timeout to wall-clock
// time, which an administrator may set.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace sluice {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds `mutex` for a scope. `Unlock` releases it early, `Lock` takes it again;
// the analysis follows both.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.Lock();
    held_ = true;
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    held_ = false;
    mutex_.Unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false if `deadline` has passed. A loop needs one deadline for all
  // of its waits.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  // Returns now + `timeout`, or a time far in the future if `timeout` is
  // infinite.
  static std::chrono::steady_clock::time_point Deadline(
      absl::Duration timeout) {
    const auto now = std::chrono::steady_clock::now();
    constexpr absl::Duration kFar = absl::Hours(24 * 365);
    return now + absl::ToChronoNanoseconds(timeout < kFar ? timeout : kFar);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace sluice
