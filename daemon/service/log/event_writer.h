// Policy's events as lines of the log, and how many lines each user gets.
//
// The daemon's own events are written however many there are. What a user
// causes is written as LogLimiter lets it.
//
// Thread safety: none needed; one thread (the loop's).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/event_log.h"
#include "daemon/service/log/log.h"
#include "daemon/service/log/log_limiter.h"

namespace sluice::daemon {

class EventWriter {
 public:
  // `own_uid`: the daemon's user, whose events without a session are its own.
  explicit EventWriter(uint32_t own_uid) : own_uid_(own_uid) {}

  // Those that came since it was called last. Where more came than the ring
  // holds, a line says how many are missing.
  void WriteNew(const EventLog& log, absl::Time now);
  // A line that user `uid` caused (LogLimiter::kUnknown: who could not be
  // identified), unless it is one too many.
  void WriteLimited(int64_t uid, absl::Time now, LogLevel level,
                    const std::string& text, const LogFields& fields = {});

 private:
  void Write(const LoggedEvent& event, absl::Time now);

  const uint32_t own_uid_;
  uint64_t written_ = 0;  // the number of the last event
  LogLimiter limiter_;
};

}  // namespace sluice::daemon
