// A daemon's life, from its configuration to its end.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/arguments.h"
#include "daemon/store/starter.h"

namespace sluice::daemon {

// Serves until a signal ends it. If the daemon cannot go on from what an
// earlier daemon left, or too many daemons died recently, it is frozen until
// the signal. Records the error of a failed start for the next daemon, which
// may report it.
absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter);

}  // namespace sluice::daemon
