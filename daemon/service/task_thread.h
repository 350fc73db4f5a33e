// A thread that runs tasks in order, for what the loop must not wait for:
// calls of the device (making pinned memory takes seconds), large decodes.
//
// Thread safety: Run from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

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

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::daemon
