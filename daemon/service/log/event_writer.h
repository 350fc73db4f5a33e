// Writes policy's events as lines of the log, with a limit per user.
//
// Thread safety: none needed; one thread (the loop's).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/journal.h"
#include "daemon/service/log/log.h"

namespace sluice::daemon {

// Limits how many lines of the log each user may cause: kBurst at once, then
// kPerSecond. Lines over the limit are counted, and the user's next written
// line reports their number.
class LogLimiter {
 public:
  static constexpr double kBurst = 200;
  static constexpr double kPerSecond = 20;

  // The user of all peers that could not be identified.
  static constexpr int64_t kUnknown = -1;

  // Returns nullopt if no line of `uid` may be written, else the number of its
  // lines that were omitted since the last written one.
  std::optional<uint64_t> Admit(int64_t uid, absl::Time now);
  size_t users() const { return users_.size(); }

 private:
  void Tidy(absl::Time now);

  struct User {
    double left = kBurst;
    absl::Time at;
    uint64_t suppressed = 0;
    double LeftAt(absl::Time now) const {
      const double since = absl::ToDoubleSeconds(now - at);
      return std::min(kBurst, left + kPerSecond * since);
    }
  };
  std::map<int64_t, User> users_;
  absl::Time tidied_at_ = absl::InfinitePast();
};

// Writes the daemon's own events without a limit, and those that a user causes
// as LogLimiter admits them.
class EventWriter {
 public:
  // Events of `own_uid` without a session are the daemon's own.
  explicit EventWriter(uint32_t own_uid) : own_uid_(own_uid) {}

  // Writes the events since the last call, and how many are no longer kept.
  void WriteNew(const EventLog& log, absl::Time now);
  // Writes a line that user `uid` (or LogLimiter::kUnknown) caused, unless the
  // user's limit is reached.
  void WriteLimited(int64_t uid, absl::Time now, LogLevel level,
                    const std::string& text, const LogFields& fields = {});

 private:
  void Write(const LoggedEvent& event, absl::Time now);

  const uint32_t own_uid_;
  uint64_t written_ = 0;  // number of the last written event
  LogLimiter limiter_;
};

}  // namespace sluice::daemon
