#include "client/copy/copy_timeline.h"

#include <chrono>
#include <utility>

#include "proto/base/clock.h"

namespace sluice::client {
namespace {

constexpr std::chrono::microseconds kPoll{100};

}  // namespace

CopyTimeline::CopyTimeline() : thread_([this] { Run(); }) {}

CopyTimeline::~CopyTimeline() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void CopyTimeline::Add(const CopyRecord& record,
                       std::shared_ptr<TicketAccess::State> start,
                       std::shared_ptr<TicketAccess::State> end) {
  const int lane =
      record.direction == device::CopyDirection::kHostToDevice ? kH2d : kD2h;
  {
    const MutexLock lock(mutex_);
    pending_[lane].push_back({record, TicketAccess::Make(std::move(start)),
                              TicketAccess::Make(std::move(end))});
  }
  changed_.NotifyAll();
}

void CopyTimeline::AwaitAll() {
  const MutexLock lock(mutex_);
  while (!Empty() && !stopping_) changed_.Wait(mutex_);
}

std::vector<CopyRecord> CopyTimeline::Take() {
  const MutexLock lock(mutex_);
  return std::exchange(ended_, {});
}

// Advances the oldest records; false when none is pending.
bool CopyTimeline::Poll(std::deque<Pending>& queue) {
  const double now = MonotonicSeconds();
  while (!queue.empty()) {
    Pending& first = queue.front();
    if (first.record.started_s == 0 && first.start.done()) {
      first.record.started_s = now;
    }
    if (!first.end.done()) return true;
    first.record.finished_s = now;
    ended_.push_back(first.record);
    queue.pop_front();
  }
  return false;
}

void CopyTimeline::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const bool h2d = Poll(pending_[kH2d]);
    const bool d2h = Poll(pending_[kD2h]);
    if (h2d || d2h) {
      lock.Unlock();
      std::this_thread::sleep_for(kPoll);
      lock.Lock();
    } else {
      changed_.NotifyAll();
      while (!stopping_ && Empty()) changed_.Wait(mutex_);
    }
  }
}

}  // namespace sluice::client
