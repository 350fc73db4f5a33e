// The pending work of a stream, and the thread that does it in order, each
// operation with a random delay.
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
  // The thread ends when the queue is closed and empty.
  static std::shared_ptr<WorkQueue> Start(int64_t jitter_us);
  ~WorkQueue();

  void Push(std::function<void()> work);
  // Removes all delays from now on.
  void Hurry();
  // Waits until all pushed work is done.
  void Wait();
  bool idle();
  void Close();
  // Waits at most `patience` for the thread of a closed queue. Returns whether
  // the thread has ended and its thread-local data are destroyed, so that the
  // libraries that made them may be destroyed as well.
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

// One recording of an event. A call that waits for an event waits for the
// recording that was the event's latest when the call was made.
class Recording {
 public:
  void Complete();
  void Wait();
  bool complete();
  // Returns the time of Complete().
  std::chrono::steady_clock::time_point time();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point time_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::fake_cuda
