// The session socket where who started the process made it: the .socket unit of
// socket activation. It is there before the first daemon and behind the last,
// so whoever connects waits for one and is refused by none.
//
// Thread safety: safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Of `sockets` (Starter::sockets) the one that listens at `path`, whose folder
// is there; empty: none was handed on. InvalidArgument, in one line: there is
// another one, or it is no listening SOCK_SEQPACKET socket, or elsewhere.
absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path);

// Whether both are one socket.
bool IsSameSocket(const UniqueFd& a, const UniqueFd& b);

}  // namespace sluice::daemon
