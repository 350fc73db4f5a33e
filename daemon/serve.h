// Runs `sluiced`: either serves, or executes `--check-config` and
// `--check-state`.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/arguments.h"
#include "daemon/store/starter.h"

namespace sluice::daemon {

// Serves until a signal. The daemon is frozen (daemon/frozen) if it cannot take
// over what an earlier daemon left, or if too many daemons died recently.
// Records the error of a failed start for the next daemon, which may report it.
absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter);

// Prints one line per check that passes; returns the first error.
absl::Status Check(const Arguments& arguments);

}  // namespace sluice::daemon
