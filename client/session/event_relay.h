// Passes session events to the one handler. Internal to client.
#pragma once

#include <vector>

#include "client/session/session.h"
#include "proto/base/mutex.h"

namespace sluice::client {

// Keeps events that come before there is a handler. Thread safety: safe; the
// handler is called under the lock, so that replacing it waits for it.
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
