// Session events on their way to the one handler. Internal to client.
#pragma once

#include <mutex>
#include <vector>

#include "client/session/session.h"

namespace sluice::client {

// Keeps what comes before there is a handler. Thread safety: safe; the
// handler is called under the lock, so that replacing it waits for it.
class EventRelay {
 public:
  void Set(Session::EventHandler handler);
  void Deliver(const SessionEvent& event);

 private:
  std::mutex mutex_;
  Session::EventHandler handler_;
  std::vector<SessionEvent> early_;
};

}  // namespace sluice::client
