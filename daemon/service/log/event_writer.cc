#include "daemon/service/log/event_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::daemon {
namespace {

LogLevel LevelOf(EventKind kind) {
  switch (kind) {
    case EventKind::kLease:
    case EventKind::kDetach:
      return LogLevel::kDebug;
    case EventKind::kDeath:
    case EventKind::kProtocol:
    case EventKind::kRefuse:
    case EventKind::kStart:
      return LogLevel::kWarning;
    default:
      return LogLevel::kInfo;
  }
}

constexpr absl::Duration kTidyEvery = absl::Seconds(60);

}  // namespace

void EventWriter::WriteNew(const EventLog& log, absl::Time now) {
  const uint64_t unwritten = log.last() - written_;
  if (unwritten == 0) return;
  const auto is_written = [this](const LoggedEvent& event) {
    return event.number <= written_;
  };
  const auto& events = log.events();
  auto next = std::find_if(events.rbegin(), events.rend(), is_written).base();
  const auto kept = static_cast<uint64_t>(std::distance(next, events.end()));
  written_ = log.last();
  if (unwritten > kept) {
    WriteLog(LogLevel::kWarning,
             fmt::format("{} events are not in the log: more than {} came at "
                         "once, and the first of them are lost",
                         unwritten - kept, kept));
  }
  for (; next != events.end(); ++next) Write(*next, now);
}

void EventWriter::Write(const LoggedEvent& event, absl::Time now) {
  const std::string text = fmt::format("{}: {}", Name(event.kind), event.text);
  LogFields fields{.event = std::string(Name(event.kind)),
                   .request = event.cause.Text()};
  if (event.cause.session == SessionId() &&
      (event.principal == Principal{} ||
       event.principal == Principal{own_uid_, ""})) {
    return WriteLog(LevelOf(event.kind), text, fields);
  }
  fields.uid = event.principal.uid;
  WriteLimited(event.principal.uid, now, LevelOf(event.kind), text, fields);
}

void EventWriter::WriteLimited(int64_t uid, absl::Time now, LogLevel level,
                               const std::string& text,
                               const LogFields& fields) {
  if (!IsLogged(level)) return;
  const auto suppressed = limiter_.Admit(uid, now);
  if (!suppressed) return CountSuppressed(1);
  if (*suppressed > 0) {
    const std::string whose = uid == LogLimiter::kUnknown
                                  ? "unidentified peers"
                                  : fmt::format("user {}", uid);
    WriteLog(LogLevel::kWarning,
             fmt::format("{} lines of {} were left out: at most {:g} a second "
                         "are written",
                         *suppressed, whose, LogLimiter::kPerSecond));
  }
  WriteLog(level, text, fields);
}

std::optional<uint64_t> LogLimiter::Admit(int64_t uid, absl::Time now) {
  Tidy(now);
  User& user = users_.try_emplace(uid, User{.at = now}).first->second;
  user.left = user.LeftAt(now);
  user.at = now;
  if (user.left < 1) {
    ++user.suppressed;
    return std::nullopt;
  }
  user.left -= 1;
  return std::exchange(user.suppressed, 0);
}

void LogLimiter::Tidy(absl::Time now) {
  if (now < tidied_at_ + kTidyEvery) return;
  tidied_at_ = now;
  std::erase_if(users_, [&](const auto& entry) {
    return entry.second.suppressed == 0 && entry.second.LeftAt(now) >= kBurst;
  });
}

}  // namespace sluice::daemon
