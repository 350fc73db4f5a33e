// The signals, limits and files of this process, which is the daemon or its
// keeper. SIGTERM, SIGINT and SIGQUIT end it; SIGHUP, SIGUSR1 and SIGUSR2 are
// handled or forwarded. These signals are blocked and read from a descriptor:
// otherwise a signal would end the process at once, and its sockets would stay
// behind.
//
// Thread safety: before there are threads, except IsEndingSignal.
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>

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

// Raises the soft limit of open files to the hard limit: each extent needs a
// descriptor, each session two, and each descriptor that is kept one more.
// Returns the soft limit, which quotas share out; it is also the kernel's limit
// of descriptors in flight.
int64_t RaiseDescriptorLimit();

// Returns the path of this program's file, as it was at the first call. By now
// the file may be that of a later version.
const std::string& ThisProgram();
// Returns the path of the program `name` in the folder of this program.
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
