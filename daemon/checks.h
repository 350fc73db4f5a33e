// What `sluiced --check-config` and `--check-state` do.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/arguments.h"

namespace sluice::daemon {

// What the flags ask for: one line on standard output for each that is good, or
// why it is not.
absl::Status Check(const Arguments& arguments);

}  // namespace sluice::daemon
