// Threads beside the loop's, and the scheduling of threads.
//
// Every rank waits for the loop, and the kernel lets another process on the
// loop's core continue for milliseconds. So while the loop computes little, it
// has the lowest real-time priority, like the thread that refills the grant
// pages. A loop that a flood of requests keeps busy loses this priority until
// it is less busy, so that it takes no core from the node's training.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "proto/base/mutex.h"

namespace sluice::daemon {

// Gives the calling thread the lowest real-time priority, which is above all
// threads without one, or with `first` false gives it up; the nice value stays.
// Returns false, with nothing changed, if the kernel does not allow it
// (CAP_SYS_NICE, LimitRTPRIO=; a cgroup without real-time). Threads and
// processes that the thread starts do not inherit the priority.
bool GoBeforeOthers(bool first = true);

absl::Duration CpuTimeOfThisThread();

// Decides when the loop's thread has priority. Pure.
class Urgency {
 public:
  static constexpr absl::Duration kWindow = absl::Milliseconds(100);
  static constexpr double kMost = 0.75;  // fraction of a core, within a window

  // Returns whether the thread should have priority. Must be called at least
  // once per kWindow while the thread computes. `cpu` is the thread's CPU time
  // since it began, at the time `now`, which must not go back.
  bool IsUrgent(absl::Time now, absl::Duration cpu) {
    if (now < end_) return urgent_;
    if (begin_ != absl::InfinitePast()) {
      urgent_ = cpu - cpu_at_begin_ <= kMost * (now - begin_);
    }
    begin_ = now;
    end_ = now + kWindow;
    cpu_at_begin_ = cpu;
    return urgent_;
  }
  absl::Time next() const { return end_; }

 private:
  bool urgent_ = true;
  absl::Time begin_ = absl::InfinitePast();
  absl::Time end_ = absl::InfinitePast();
  absl::Duration cpu_at_begin_ = absl::ZeroDuration();
};

// Runs tasks in order. The loop must not wait for them: device calls (making
// pinned memory takes seconds) and large decodes.
//
// Thread safety: safe, but Finish waits for ever if a task calls it.
class TaskThread {
 public:
  // kBehindTheLoop is for long work that competes with clients' requests: the
  // thread yields its core when the loop wakes. Processes that it starts
  // inherit the priority.
  enum class Priority { kAsTheLoop, kBehindTheLoop };

  // `name` has at most 15 characters, for ps and top.
  explicit TaskThread(const std::string& name,
                      Priority priority = Priority::kAsTheLoop);
  // Finishes the running task and drops the queued ones.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;

  void Run(std::function<void()> task) {
    RunAfter(absl::ZeroDuration(), std::move(task));
  }
  // Runs `task` after `delay`, and after the tasks that are queued by then.
  void RunAfter(absl::Duration delay, std::function<void()> task);
  // Drops queued tasks, accepts no more, and waits for the running task.
  // Returns false if that task still runs after `patience`.
  bool Finish(absl::Duration patience);

 private:
  void Work(Priority priority);

  Mutex mutex_;
  CondVar ready_;
  // The key is the earliest time of a task; equal keys keep their order.
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>>
      tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::daemon
