// The session socket that the starter made: socket activation by a .socket
// unit. It exists before the first daemon and after the last, so a client that
// connects waits for a daemon instead of being refused.
//
// Thread safety: safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Returns the socket of `sockets` (Starter::sockets) that listens at `path`,
// which is in an existing folder; empty if `sockets` is. InvalidArgument, in
// one line: there are several sockets, or it is not a listening SOCK_SEQPACKET
// socket, or it listens elsewhere.
absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path);

// Returns whether both are the same socket.
bool IsSameSocket(const UniqueFd& a, const UniqueFd& b);

}  // namespace sluice::daemon
