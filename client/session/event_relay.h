// Passes session events to the session's only handler. Internal to client.
#pragma once

#include <vector>

#include "client/session/session.h"
#include "proto/base/mutex.h"

namespace sluice::client {

// Delivers events to the handler, and keeps events that arrive before there is
// one. Thread safety: safe. The handler is called under the lock, so a call
// that replaces it waits until it has returned.
class EventRelay {
 public:
  void Set(Session::EventHandler handler);
  void Deliver(const SessionEvent& event);

 private:
  Mutex mutex_;
  Session::EventHandler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<SessionEvent> early_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::client
