// A thread that runs tasks in order, for work for which the loop must not wait:
// device calls (making pinned memory takes seconds) and large decodes.
//
// Thread safety: Run, RunAfter and Finish from any thread but its own.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "proto/base/mutex.h"

namespace sluice::daemon {

class TaskThread {
 public:
  // kBehindTheLoop is for long work that competes with clients' requests: the
  // thread yields its core when the loop wakes. Processes that it starts
  // inherit this.
  enum class Priority { kAsTheLoop, kBehindTheLoop };

  // `name` has at most 15 characters, for ps and top.
  explicit TaskThread(const std::string& name,
                      Priority priority = Priority::kAsTheLoop);
  // Finishes the running task and drops the rest.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;

  void Run(std::function<void()> task);
  // Runs `task` after `delay`, and after the tasks that are queued by then.
  void RunAfter(absl::Duration delay, std::function<void()> task);
  // Drops queued tasks, accepts no more, and waits for the running one. Returns
  // false if that one still runs after `patience`.
  bool Finish(absl::Duration patience);

 private:
  using Time = std::chrono::steady_clock::time_point;
  void Work(Priority priority);
  void TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Time, std::function<void()>> later_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::daemon
