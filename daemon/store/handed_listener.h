// The session socket if the starter made it: the .socket unit of socket
// activation. It is there before the first daemon and after the last, so a
// client that connects waits for one and is refused by none.
//
// Thread safety: safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Returns the one of `sockets` (Starter::sockets) that listens at `path`, in a
// folder that exists; empty: none was handed on. InvalidArgument, in one line:
// there is another one, or it is no listening SOCK_SEQPACKET socket, or
// elsewhere.
absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path);

// Whether both are the same socket.
bool IsSameSocket(const UniqueFd& a, const UniqueFd& b);

}  // namespace sluice::daemon
