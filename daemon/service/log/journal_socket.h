// journald's own protocol (systemd: "Native Journal Protocol"): an
// entry is one datagram of fields.
//
// Thread safety: safe.
#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class JournalSocket {
 public:
  static constexpr char kPath[] = "/run/systemd/journal/socket";
  using Fields = std::vector<std::pair<std::string_view, std::string>>;

  // Whether stderr is read by journald: `stream` is $JOURNAL_STREAM, which
  // names the device and the inode of what it reads. Null: it is not set.
  static bool ReadsStderr(const char* stream);
  // Succeeds without a listener on `path`.
  static absl::StatusOr<JournalSocket> Make(const std::string& path = kPath);

  // Names are capital letters, digits and underscores; values are any bytes.
  static std::string Encode(const Fields& fields);
  // Waits while journald is busy. False: it did not take the entry.
  bool Send(const std::string& entry) const;

 private:
  JournalSocket(UniqueFd socket, const sockaddr_un& to)
      : socket_(std::move(socket)), to_(to) {}

  UniqueFd socket_;
  sockaddr_un to_;  // not connected: journald may be started again
};

}  // namespace sluice::daemon
