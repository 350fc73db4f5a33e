// Makes the sockets of the HTTP server. They listen and do not block.
//
// Thread safety: pure, except for the system calls.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// InvalidArgument: neither "ADDRESS:PORT" nor "[ADDRESS]:PORT". NotFound: there
// is no group `group`. Empty strings are OK.
absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group);

// Listens at `listen`, which passed CheckHttpSockets; its port is set if it was
// 0. Uses `left`, an earlier daemon's listening socket or empty, if it is bound
// there. AlreadyExists: the port is taken, or the address is not this
// machine's.
absl::StatusOr<UniqueFd> ListenOnTcp(std::string& listen, UniqueFd left);

// Listens at `path` and replaces what is there. The socket has mode 0660 and
// belongs to the group named `group`, or has mode 0600 if `group` is empty.
// NotFound: no such group. PermissionDenied: the daemon may not set that group.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group);

}  // namespace sluice::daemon
