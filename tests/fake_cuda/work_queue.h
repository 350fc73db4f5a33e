// What a stream still has to do, and the thread that does it in order, each
// operation a random while late.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"

namespace sluice::fake_cuda {

// Thread safety: thread-safe.
class WorkQueue {
 public:
  // The thread ends by itself when the queue is closed and empty.
  static std::shared_ptr<WorkQueue> Start(int64_t jitter_us);
  ~WorkQueue();

  void Push(std::function<void()> work);
  // From now on nothing is late.
  void Hurry();
  // Until all that was pushed is done.
  void Wait();
  bool idle();
  void Close();
  // Whether the thread of a closed queue is through, waiting for it so long;
  // where it is, also with what libraries keep of a thread: before they end
  // themselves, at the end of a process.
  bool HasEnded(std::chrono::milliseconds patience);

 private:
  explicit WorkQueue(int64_t jitter_us) : jitter_us_(jitter_us) {}
  void Run();

  const int64_t jitter_us_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// One recording of an event: waiters keep the one they saw.
class Recording {
 public:
  void Complete();
  void Wait();
  bool complete();
  // When it was completed.
  std::chrono::steady_clock::time_point time();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point time_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::fake_cuda
