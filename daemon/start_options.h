// The options of a service.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/arguments.h"
#include "daemon/config.h"
#include "daemon/node.h"
#include "daemon/service/service.h"
#include "daemon/store/starter.h"
#include "proto/base/clock.h"

namespace sluice::daemon {

struct WorkerUser {
  std::optional<uint32_t> uid, gid;  // unset: the daemon's own
};

// Looks up [worker] user; empty: no user. NotFound: there is no such user.
// PermissionDenied: it is another user, and the daemon does not run as root.
absl::StatusOr<WorkerUser> FindWorkerUser(const std::string& name);

// Returns all options but `policy`, `listener` and `deaths`. `node` and `clock`
// outlive the service; the clocks of simulated links are moved out of `node`.
// Raises the limit of open files, and lets clients have the descriptors that
// the store leaves free. Errors as FindWorkerUser; NotFound: a GPU has no
// device file.
absl::StatusOr<ServiceOptions> StartOptions(const Arguments& arguments,
                                            const Config& config, Node& node,
                                            Starter starter,
                                            const Clock& clock);

}  // namespace sluice::daemon
