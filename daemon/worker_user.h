// The user that plan workers run as. If the daemon may set it, a solver that
// malicious profiles have taken over does not run as the daemon's user.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::daemon {

struct WorkerUser {
  std::optional<uint32_t> uid, gid;  // unset: the daemon's own
};

// Looks up `name`, the value of [worker] user. Returns no user if it is empty.
// NotFound: there is no such user. PermissionDenied: it is another user, and
// the daemon does not run as root.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

}  // namespace sluice::daemon
