#include "daemon/service/task_thread.h"

#include <pthread.h>

namespace sluice::daemon {

TaskThread::TaskThread(const std::string& name) : thread_([this] { Work(); }) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

TaskThread::~TaskThread() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  ready_.NotifyAll();
  thread_.join();
}

void TaskThread::Run(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ready_.NotifyOne();
}

void TaskThread::Work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && tasks_.empty()) ready_.Wait(mutex_);
    if (stopping_) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;
    lock.Lock();
  }
}

}  // namespace sluice::daemon
