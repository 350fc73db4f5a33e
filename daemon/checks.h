// `sluiced --check-config` and `--check-state`.
//
// Thread safety: one thread.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/arguments.h"
#include "daemon/core/node/types.h"
#include "daemon/core/policy.h"
#include "daemon/policy_file.h"

namespace sluice::daemon {

// Prints one line per check that passes; returns the first error.
absl::Status Check(const Arguments& arguments);

// Returns the policy that administrators set, if a daemon of user `daemon` on
// this node can use it; else the errors of PolicyFile::Read and
// Core::SetPolicy.
absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now);

}  // namespace sluice::daemon
