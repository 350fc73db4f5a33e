// Makes the sockets of the HTTP server. They listen and do not block.
//
// Thread safety: pure, except for the system calls.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Checks both settings; empty strings are valid. InvalidArgument: `listen` is
// neither "ADDRESS:PORT" nor "[ADDRESS]:PORT". NotFound: there is no group
// `group`.
absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group);

// Listens at `listen`, which passed CheckHttpSockets. If its port is 0, sets it
// to the chosen one. Uses `left`, an earlier daemon's listening socket, if that
// is bound to the same address; it may be empty. AlreadyExists: the port is in
// use, or the address is not this machine's.
absl::StatusOr<UniqueFd> ListenOnTcp(std::string& listen, UniqueFd left);

// Listens at `path` and replaces what is there. The socket has mode 0660 and
// belongs to the group named `group`, or has mode 0600 if `group` is empty.
// NotFound: no such group. PermissionDenied: the daemon may not set that group.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group);

}  // namespace sluice::daemon
