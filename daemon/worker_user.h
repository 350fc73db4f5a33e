// The user of the plan worker, if the daemon may set it: a solver that another
// user's numbers broke into is then not the daemon's user.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::daemon {

struct WorkerUser {
  std::optional<uint32_t> uid, gid;  // none: the daemon's own
};

// Looks up `name`, as [worker] user has it; empty: none. NotFound: there is no
// such user; PermissionDenied: the daemon is not root, and it is another user.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

}  // namespace sluice::daemon
