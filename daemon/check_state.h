// Whether this binary would take over what the running daemon knows
// (`sluiced --check-state`).
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

// Asks the daemon on `admin_socket` for its state, and reads it as a daemon of
// `node` would. One line of what it is; Unimplemented (of another version),
// FailedPrecondition or InvalidArgument says why not. Where no daemon runs
// there is nothing to refuse.
absl::StatusOr<std::string> CheckState(const std::string& admin_socket,
                                       const NodeConfig& node);

}  // namespace sluice::daemon
