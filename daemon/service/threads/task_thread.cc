#include "daemon/service/threads/task_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <utility>

namespace sluice::daemon {
namespace {

// At this niceness the thread gets about a quarter of a core if other work
// wants all of it.
constexpr int kNiceness = 5;

}  // namespace

bool GoBeforeOthers() {
  const sched_param lowest = {.sched_priority = 1};
  return sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest) == 0;
}

void GoAsOthers() {
  const sched_param none = {.sched_priority = 0};
  // SCHED_RESET_ON_FORK stays set: clearing it needs the same capability as
  // raising priority.
  (void)sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none);
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
  // On Linux this affects only the calling thread. Lowering the priority needs
  // no privilege.
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
