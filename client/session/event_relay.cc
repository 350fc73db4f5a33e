#include "client/session/event_relay.h"

#include <utility>

namespace sluice::client {

void EventRelay::Set(Session::EventHandler handler) {
  const MutexLock lock(mutex_);
  handler_ = std::move(handler);
  if (!handler_) return;
  for (const SessionEvent& event : std::exchange(early_, {})) handler_(event);
}

void EventRelay::Deliver(const SessionEvent& event) {
  const MutexLock lock(mutex_);
  if (handler_) {
    handler_(event);
  } else {
    early_.push_back(event);
  }
}

}  // namespace sluice::client
