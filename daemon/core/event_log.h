// What happened lately, for people: a ring of the last events.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

enum class EventKind {
  kAttach,
  kDetach,
  kLease,
  kWait,
  kRefuse,
  kDeath,
  kProtocol,
  kEvict,
  kPlan,
  kBudget,
  kDrain,
  kStart,
  kStop,
};
template <>
struct EnumNames<EventKind> {
  static constexpr std::string_view kNames[] = {
      "attach", "detach", "lease",  "wait",  "refuse", "death", "protocol",
      "evict",  "plan",   "budget", "drain", "start",  "stop"};
};

// Which request an event follows from, or which session as a whole.
struct Cause {
  SessionId session;  // 0: neither
  RequestId request;  // 0: none of the session's

  // "s12.r7", "s12", "".
  std::string Text() const {
    if (session.value() == 0) return "";
    std::string text = "s" + std::to_string(session.value());
    if (request.value() > 0) text += ".r" + std::to_string(request.value());
    return text;
  }
};

struct LoggedEvent {
  uint64_t number = 0;  // counts up from 1, never reused
  absl::Time at;        // monotonic
  EventKind kind = EventKind::kStart;
  std::string text;     // one line
  Principal principal;  // whose; the daemon's own events have uid 0, ""
  Cause cause;
};

class EventLog {
 public:
  explicit EventLog(size_t capacity = 256) : capacity_(capacity) {}

  const LoggedEvent& Add(absl::Time at, EventKind kind, std::string text,
                         Principal principal, Cause cause = {}) {
    events_.push_back(
        {++last_, at, kind, std::move(text), std::move(principal), cause});
    if (events_.size() > capacity_) events_.pop_front();
    return events_.back();
  }

  const std::deque<LoggedEvent>& events() const { return events_; }
  uint64_t last() const { return last_; }

 private:
  const size_t capacity_;
  std::deque<LoggedEvent> events_;
  uint64_t last_ = 0;
};

}  // namespace sluice::daemon
