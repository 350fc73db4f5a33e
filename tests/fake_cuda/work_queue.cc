#include "tests/fake_cuda/work_queue.h"

#include <unistd.h>

#include <thread>
#include <utility>

namespace sluice::fake_cuda {

std::shared_ptr<WorkQueue> WorkQueue::Start(int64_t jitter_us) {
  std::shared_ptr<WorkQueue> queue(new WorkQueue(jitter_us));
  queue->thread_ = std::thread([queue] { queue->Run(); });
  return queue;
}

WorkQueue::~WorkQueue() {
  if (thread_.joinable()) thread_.detach();
}

void WorkQueue::Push(std::function<void()> work) {
  const MutexLock lock(mutex_);
  work_.push_back(std::move(work));
  changed_.NotifyAll();
}

void WorkQueue::Hurry() {
  const MutexLock lock(mutex_);
  hurried_ = true;
}

void WorkQueue::Wait() {
  const MutexLock lock(mutex_);
  while (busy_ || !work_.empty()) changed_.Wait(mutex_);
}

bool WorkQueue::idle() {
  const MutexLock lock(mutex_);
  return !busy_ && work_.empty();
}

void WorkQueue::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

bool WorkQueue::HasEnded(std::chrono::milliseconds patience) {
  {
    const auto until = std::chrono::steady_clock::now() + patience;
    const MutexLock lock(mutex_);
    while (!ended_) {
      if (!changed_.WaitUntil(mutex_, until) && !ended_) return false;
    }
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

void WorkQueue::Run() {
  std::minstd_rand random{std::random_device{}()};
  MutexLock lock(mutex_);
  for (;;) {
    while (work_.empty() && !closed_) changed_.Wait(mutex_);
    if (work_.empty()) {
      ended_ = true;
      changed_.NotifyAll();
      return;
    }
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    const bool late = jitter_us_ > 0 && !hurried_;
    lock.Unlock();
    if (late) {
      usleep(static_cast<useconds_t>(random() % jitter_us_));
    }
    work();
    // Not under the mutex: destroying `work` may take Python's GIL, and the
    // thread that holds the GIL may push.
    work = nullptr;
    lock.Lock();
    busy_ = false;
    changed_.NotifyAll();
  }
}

void Recording::Complete() {
  const MutexLock lock(mutex_);
  complete_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.NotifyAll();
}

void Recording::Wait() {
  const MutexLock lock(mutex_);
  while (!complete_) changed_.Wait(mutex_);
}

std::chrono::steady_clock::time_point Recording::time() {
  const MutexLock lock(mutex_);
  return time_;
}

bool Recording::complete() {
  const MutexLock lock(mutex_);
  return complete_;
}

}  // namespace sluice::fake_cuda
