#include "daemon/service/threads/task_thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <utility>

namespace sluice::daemon {

namespace {

// At this niceness the thread gets about a quarter of a core if other work
// wants all of it.
constexpr int kNiceness = 5;

}  // namespace

TaskThread::TaskThread(const std::string& name, Priority priority)
    : thread_([this, priority] { Work(priority); }) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

TaskThread::~TaskThread() {
  Finish(absl::ZeroDuration());
  thread_.join();
}

void TaskThread::Run(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  ready_.NotifyAll();
}

void TaskThread::RunAfter(absl::Duration delay, std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    later_.emplace(CondVar::Deadline(delay), std::move(task));
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

void TaskThread::TakeDue() {
  const Time now = std::chrono::steady_clock::now();
  while (!later_.empty() && later_.begin()->first <= now) {
    tasks_.push_back(std::move(later_.begin()->second));
    later_.erase(later_.begin());
  }
}

void TaskThread::Work(Priority priority) {
  // On Linux this affects only the calling thread. Lowering the priority needs
  // no privilege.
  if (priority == Priority::kBehindTheLoop) {
    setpriority(PRIO_PROCESS, 0, kNiceness);
  }
  MutexLock lock(mutex_);
  while (!stopping_) {
    TakeDue();
    if (tasks_.empty() && later_.empty()) {
      ready_.Wait(mutex_);
      continue;
    }
    if (tasks_.empty()) {
      ready_.WaitUntil(mutex_, later_.begin()->first);
      continue;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;
    lock.Lock();
  }
  ended_ = true;
  ready_.NotifyAll();
}

}  // namespace sluice::daemon
