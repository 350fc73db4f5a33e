// The daemon's log: one line per event on stderr. If journald reads stderr, the
// line goes to journald instead, as an entry with fields to select by:
//
//   journalctl -u sluiced SLUICE_REQUEST=s12.r7
//
// The reader of stderr may stop reading, so a LogThread writes lines from a
// queue. Lines beyond kMostQueued are dropped, and the log reports their number
// as soon as it can. Without a LogThread each line is written at once.
//
// Thread safety: safe.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// journald's own protocol (systemd: "Native Journal Protocol"): an entry is one
// datagram of fields.
class JournalSocket {
 public:
  static constexpr char kPath[] = "/run/systemd/journal/socket";
  using Fields = std::vector<std::pair<std::string_view, std::string>>;

  // Returns whether journald reads stderr. `stream`: $JOURNAL_STREAM or null.
  static bool ReadsStderr(const char* stream);
  // Succeeds even if nothing listens on `path`.
  static absl::StatusOr<JournalSocket> Make(const std::string& path = kPath);

  // Names are capital letters, digits and underscores; values are any bytes.
  static std::string Encode(const Fields& fields);
  // Waits while journald is busy. Returns false if the entry cannot be sent.
  bool Send(const std::string& entry) const;

 private:
  JournalSocket(UniqueFd socket, const sockaddr_un& to)
      : socket_(std::move(socket)), to_(to) {}

  UniqueFd socket_;
  sockaddr_un to_;  // not connected: journald may restart
};

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void SetLogLevel(LogLevel level);
bool IsLogged(LogLevel level);
struct LogFields {
  std::string event;            // SLUICE_EVENT: "lease"
  std::string request;          // SLUICE_REQUEST: "s12.r7" (core/journal.h)
  std::optional<uint32_t> uid;  // SLUICE_UID: the user
};
void WriteLog(LogLevel level, std::string_view text,
              const LogFields& fields = {});

// Lines go to `journal` from now on, or to stderr if it does not accept them.
// REQUIRES: called at most once, while there is one thread.
void UseJournal(JournalSocket journal);

struct LogLosses {
  uint64_t dropped = 0;     // stderr was not read
  uint64_t suppressed = 0;  // over the limit of a user (event_writer.h)
};
LogLosses ReadLogLosses();
void CountSuppressed(uint64_t lines);

// The thread that writes queued lines. At most one exists at a time.
class LogThread {
 public:
  static constexpr size_t kMostQueued = 256 << 10;  // bytes

  LogThread();
  // Waits a moment for the queued lines to be written.
  ~LogThread();
  LogThread(const LogThread&) = delete;
};

}  // namespace sluice::daemon
