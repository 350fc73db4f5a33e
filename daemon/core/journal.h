// The daemon's events and counters, for people. All parts of policy share one
// journal.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/node/types.h"
#include "daemon/core/stats.h"

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

struct Cause {
  SessionId session;  // 0: no session
  RequestId request;  // 0: the session as a whole

  // Returns "s12.r7", "s12" or "".
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
  Principal principal;  // may see the event (snapshot.h)
  Cause cause;
};

// Keeps the latest events. If there are too many, the user with the most loses
// its oldest one, so a flood of one user drops no other user's events.
class EventLog {
 public:
  explicit EventLog(size_t capacity = 256) : capacity_(capacity) {}
  EventLog(const EventLog&) = delete;  // users_ has iterators into events_

  const LoggedEvent& Add(absl::Time at, EventKind kind, std::string text,
                         Principal principal, Cause cause = {}) {
    events_.push_back(
        {++last_, at, kind, std::move(text), std::move(principal), cause});
    users_[events_.back().principal].push_back(std::prev(events_.end()));
    if (events_.size() > capacity_) DropOne();
    return events_.back();
  }

  // The kept events, oldest first.
  const std::list<LoggedEvent>& events() const { return events_; }
  uint64_t last() const { return last_; }
  // Returns the highest number of a dropped event; 0 if none was dropped.
  uint64_t dropped() const { return dropped_; }

 private:
  void DropOne() {
    const auto most =
        std::ranges::max_element(users_, {}, [](const auto& user) {
          return std::pair(user.second.size(),
                           UINT64_MAX - user.second.front()->number);
        });
    dropped_ = std::max(dropped_, most->second.front()->number);
    events_.erase(most->second.front());
    most->second.pop_front();
    if (most->second.empty()) users_.erase(most);
  }

  const size_t capacity_;
  std::list<LoggedEvent> events_;
  std::map<Principal, std::deque<std::list<LoggedEvent>::iterator>> users_;
  uint64_t last_ = 0;
  uint64_t dropped_ = 0;
};

struct Journal {
  EventLog log;
  Stats stats;

  void Log(absl::Time now, EventKind kind, std::string text,
           const Principal& whose, Cause cause = {}) {
    log.Add(now, kind, std::move(text), whose, cause);
  }
  // Logs an event of `session`. `request`: its cause; 0: the whole session.
  void LogOf(const auto& session, absl::Time now, EventKind kind,
             std::string text, RequestId request = {}) {
    Log(now, kind, std::move(text), session.peer.principal,
        {session.id, request});
  }
};

}  // namespace sluice::daemon
