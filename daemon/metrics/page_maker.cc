#include "daemon/metrics/page_maker.h"

#include <pthread.h>

#include <utility>

namespace sluice::daemon {

PageMaker::PageMaker(Made made)
    : made_(std::move(made)), thread_([this] { Work(); }) {
  pthread_setname_np(thread_.native_handle(), "http-pages");
}

PageMaker::~PageMaker() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void PageMaker::Serve(PageSources sources) {
  const MutexLock lock(mutex_);
  sources_ = std::make_shared<const PageSources>(std::move(sources));
}

uint64_t PageMaker::Ask(PageKey key) {
  const MutexLock lock(mutex_);
  asked_.insert(key);
  changed_.NotifyAll();
  return round_;
}

void PageMaker::Work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && asked_.empty()) changed_.Wait(mutex_);
    if (stopping_) return;
    const std::set<PageKey> asked = std::exchange(asked_, {});
    const uint64_t round = round_++;
    const auto sources = sources_;
    lock.Unlock();
    made_(round, MakePages(asked, sources.get()));
    lock.Lock();
    const auto next = CondVar::Deadline(kPause);
    while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

}  // namespace sluice::daemon
