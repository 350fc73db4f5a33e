// A daemon's life, from its configuration to its end.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/arguments.h"
#include "daemon/store/starter.h"

namespace sluice::daemon {

// Serves until a signal ends it. If a start cannot go on from what an earlier
// daemon left, or too many died recently, it is frozen until then. The error of
// a failed start is kept for the next one, which may have to report it.
absl::Status ServeOrSayWhy(const Arguments& arguments, Starter starter);

}  // namespace sluice::daemon
