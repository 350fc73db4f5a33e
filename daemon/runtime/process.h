// The signals, limits and files of this process, which is the daemon or its
// keeper. SIGTERM, SIGINT and SIGQUIT end it; SIGHUP, SIGUSR1 and SIGUSR2 are
// handled or forwarded. These signals are blocked and read from a descriptor:
// otherwise a signal would end the process at once and leave its sockets
// behind.
//
// Thread safety: any thread, but BlockSignals before there are other threads.
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Blocks these signals in this thread and those that it starts, and ignores
// SIGPIPE, which writing to a log without a reader raises.
void BlockSignals();
// Returns a non-blocking signalfd(2) of the signals. REQUIRES: BlockSignals.
absl::StatusOr<UniqueFd> OpenSignals();
bool IsEndingSignal(int signal);

// Raises the soft limit of open files to the hard limit, and returns the new
// limit, at most 2^20. The kernel limits descriptors in flight by it too.
int64_t RaiseDescriptorLimit();

// Returns the path of this program, where a later version may be by now.
// Sibling returns the path of the program `name` in the same folder.
const std::string& ThisProgram();
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
