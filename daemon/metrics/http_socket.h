// The sockets that HTTP is served on. They listen, without blocking.
//
// Thread safety: pure but for the system calls.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// InvalidArgument: not "ADDRESS:PORT" or "[ADDRESS]:PORT"; NotFound: there is
// no group `group`. Empty ones are OK.
absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group);

// At `listen`, which CheckHttpSockets has passed and which gets the port where
// that is 0, any. `left`, a listening socket of an earlier daemon or empty, is
// used if it is bound there. AlreadyExists: the port is taken, or the address
// is not this machine's.
absl::StatusOr<UniqueFd> ListenOnTcp(std::string& listen, UniqueFd left);

// At `path` instead of whatever is there: with mode 0660 and `group`'s (a name)
// own, or, with none, for the daemon's user only (0600). NotFound: no such
// group; PermissionDenied: the daemon may not give it away.
absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group);

}  // namespace sluice::daemon
