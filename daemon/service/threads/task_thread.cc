#include "daemon/service/threads/task_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <utility>

namespace sluice::daemon {
namespace {

// Leaves the thread a quarter of a core if other work wants all of it.
constexpr int kNiceness = 5;

}  // namespace

bool GoBeforeOthers(bool first) {
  const sched_param priority = {.sched_priority = first ? 1 : 0};
  // Clearing SCHED_RESET_ON_FORK needs the capability to raise priority.
  const int policy = (first ? SCHED_FIFO : SCHED_OTHER) | SCHED_RESET_ON_FORK;
  return sched_setscheduler(0, policy, &priority) == 0;
}

absl::Duration CpuTimeOfThisThread() {
  timespec computed;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
  return absl::DurationFromTimespec(computed);
}

TaskThread::TaskThread(const std::string& name, Priority priority)
    : thread_([this, priority] { Work(priority); }) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

TaskThread::~TaskThread() {
  Finish(absl::ZeroDuration());
  thread_.join();
}

void TaskThread::RunAfter(absl::Duration delay, std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    tasks_.emplace(CondVar::Deadline(delay), std::move(task));
  }
  ready_.NotifyAll();
}

bool TaskThread::Finish(absl::Duration patience) {
  const auto deadline = CondVar::Deadline(patience);
  const MutexLock lock(mutex_);
  stopping_ = true;
  ready_.NotifyAll();
  while (!ended_ && ready_.WaitUntil(mutex_, deadline)) {
  }
  return ended_;
}

void TaskThread::Work(Priority priority) {
  // On Linux this affects only this thread, and needs no privilege.
  if (priority == Priority::kBehindTheLoop) {
    setpriority(PRIO_PROCESS, 0, kNiceness);
  }
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto next = tasks_.begin();
    if (next == tasks_.end()) {
      ready_.Wait(mutex_);
    } else if (next->first > std::chrono::steady_clock::now()) {
      ready_.WaitUntil(mutex_, next->first);
    } else {
      auto task = tasks_.extract(next);
      lock.Unlock();
      task.mapped()();
      task = {};
      lock.Lock();
    }
  }
  ended_ = true;
  ready_.NotifyAll();
}

}  // namespace sluice::daemon
