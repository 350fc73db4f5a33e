// The sockets that HTTP is served on.
//
// Thread safety: pure but for the system calls.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// "ADDRESS:PORT" or "[ADDRESS]:PORT" of this machine; a port of 0 is any.
struct HttpAddress {
  std::string host;
  int port = 0;

  std::string text() const;
};
// InvalidArgument: malformed.
absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& listen);

// Listens, without blocking. `left`, a listening socket of an earlier daemon or
// empty, is used if it is bound to `address`, which gets the port.
// AlreadyExists: the port is taken, or the address is not this machine's.
absl::StatusOr<UniqueFd> ListenOnTcp(HttpAddress& address, UniqueFd left = {});

// NotFound: there is no such group. An empty name is OK.
absl::Status CheckGroup(const std::string& name);

// A stream socket at `path` instead of whatever is there: with mode 0660 and
// `group`'s (a name) own, or, with none, for the daemon's user only (0600).
// NotFound: no such group; PermissionDenied: the daemon may not give it away.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group);

}  // namespace sluice::daemon
