#include "client/copy/ticket_state.h"

#include "proto/base/status.h"

namespace sluice::client {

absl::StatusOr<device::Event> EventPool::Take() {
  const MutexLock lock(mutex_);
  if (!free_.empty()) {
    const device::Event event = free_.back();
    free_.pop_back();
    return event;
  }
  SLUICE_ASSIGN_OR_RETURN(const device::Event event, driver_->CreateEvent());
  all_.push_back(event);
  return event;
}

void EventPool::Return(device::Event event) {
  const MutexLock lock(mutex_);
  if (!closed_) free_.push_back(event);
}

absl::StatusOr<bool> EventPool::Reached(device::Event event) {
  const MutexLock lock(mutex_);
  if (closed_) return true;
  return driver_->QueryEvent(event);
}

bool EventPool::closed() {
  const MutexLock lock(mutex_);
  return closed_;
}

void EventPool::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (const device::Event event : all_) {
    driver_->DestroyEvent(event).IgnoreError();  // the device may be lost
  }
  all_.clear();
  free_.clear();
}

absl::StatusOr<std::shared_ptr<Ticket::State>> TicketAccess::New(
    const std::shared_ptr<EventPool>& pool, device::Stream stream) {
  SLUICE_ASSIGN_OR_RETURN(const device::Event event, pool->Take());
  return std::make_shared<State>(pool, event, stream);
}

bool Ticket::done() const {
  if (!state_) return true;
  switch (state_->phase.load(std::memory_order_acquire)) {
    case State::kPending:
      return false;
    case State::kRecorded:
      // On a lost device nothing is in flight; Wait returns the fault.
      return state_->pool->Reached(state_->event).value_or(true);
    default:
      return true;
  }
}

}  // namespace sluice::client
