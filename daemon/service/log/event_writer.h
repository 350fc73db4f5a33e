// Writes policy's events as lines of the log, with a limit per user.
//
// The daemon's own events are never limited. Events that a user causes are
// written as LogLimiter admits them.
//
// Thread safety: none needed; one thread (the loop's).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/journal.h"
#include "daemon/service/log/log.h"
#include "daemon/service/log/log_limiter.h"

namespace sluice::daemon {

class EventWriter {
 public:
  // `own_uid`: the daemon's user. Its events without a session are the daemon's
  // own.
  explicit EventWriter(uint32_t own_uid) : own_uid_(own_uid) {}

  // Writes the events since the last call. If some of them are no longer kept,
  // a line says how many.
  void WriteNew(const EventLog& log, absl::Time now);
  // Writes a line that user `uid` caused, unless the user's limit is reached
  // (LogLimiter::kUnknown: a peer that could not be identified).
  void WriteLimited(int64_t uid, absl::Time now, LogLevel level,
                    const std::string& text, const LogFields& fields = {});

 private:
  void Write(const LoggedEvent& event, absl::Time now);

  const uint32_t own_uid_;
  uint64_t written_ = 0;  // number of the last written event
  LogLimiter limiter_;
};

}  // namespace sluice::daemon
