// journald's own protocol (systemd: "Native Journal Protocol"): an entry is one
// datagram of fields.
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

  // Returns whether journald reads stderr. `stream` is $JOURNAL_STREAM, the
  // device and inode that journald reads; null if it is not set.
  static bool ReadsStderr(const char* stream);
  // Succeeds even if nothing listens on `path`.
  static absl::StatusOr<JournalSocket> Make(const std::string& path = kPath);

  // Encodes an entry. Names are capital letters, digits and underscores; values
  // are any bytes.
  static std::string Encode(const Fields& fields);
  // Sends an entry; waits while journald is busy. Returns false if it was not
  // taken.
  bool Send(const std::string& entry) const;

 private:
  JournalSocket(UniqueFd socket, const sockaddr_un& to)
      : socket_(std::move(socket)), to_(to) {}

  UniqueFd socket_;
  sockaddr_un to_;  // not connected: journald may restart
};

}  // namespace sluice::daemon
