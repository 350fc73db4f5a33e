// What `sluiced` does: a daemon's life, from its configuration to its end, or
// `--check-config` and `--check-state`.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/arguments.h"
#include "daemon/store/starter.h"

namespace sluice::daemon {

// Serves until a signal ends it, or is frozen until then if the daemon cannot
// go on from what an earlier one left, or too many died recently. Records the
// error of a failed start for the next daemon, which may report it.
absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter);

// Prints one line per check that passes; returns the first error.
absl::Status Check(const Arguments& arguments);

}  // namespace sluice::daemon
