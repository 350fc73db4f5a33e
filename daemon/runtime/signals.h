// The signals that the daemon and its keeper take: SIGTERM, SIGINT and SIGQUIT
// end them; SIGHUP, SIGUSR1 and SIGUSR2 are noted or handed on.
//
// Each is blocked and read from a descriptor; else it would end the process and
// leave its sockets.
//
// Thread safety: BlockSignals before there are threads; the rest is safe.
#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Blocks them in this thread and all that it starts, and ignores SIGPIPE, which
// a log without a reader raises.
void BlockSignals();
// The descriptor to read them from (signalfd(2)); reading does not wait.
// REQUIRES: BlockSignals.
absl::StatusOr<UniqueFd> OpenSignals();
bool IsEndingSignal(int signal);

}  // namespace sluice::daemon
