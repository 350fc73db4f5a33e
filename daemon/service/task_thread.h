// A thread that runs tasks in order, for what the loop must not wait for:
// calls of the device (making pinned memory takes seconds), large decodes.
//
// Thread safety: Run from any thread.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "proto/base/mutex.h"

namespace sluice::daemon {

class TaskThread {
 public:
  // `name` of at most 15 characters, for ps and top.
  explicit TaskThread(const std::string& name);
  // Finishes the running task and drops the rest.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;

  void Run(std::function<void()> task);

 private:
  void Work();

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::daemon
