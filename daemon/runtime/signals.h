// The signals that the daemon and its keeper handle. SIGTERM, SIGINT and
// SIGQUIT end them; SIGHUP, SIGUSR1 and SIGUSR2 are handled or forwarded.
//
// These signals are blocked and read from a descriptor: otherwise a signal
// would end the process at once, and its sockets would stay behind.
//
// Thread safety: BlockSignals before there are threads; the rest is safe.
#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Blocks these signals in this thread and in all threads that it starts later.
// Ignores SIGPIPE, which writing to a log without a reader raises.
void BlockSignals();
// Returns a descriptor to read the signals from (signalfd(2)); reading does not
// wait. REQUIRES: BlockSignals.
absl::StatusOr<UniqueFd> OpenSignals();
bool IsEndingSignal(int signal);

}  // namespace sluice::daemon
