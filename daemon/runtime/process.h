// The signals, limits and files of this process, which is the daemon or its
// keeper. SIGTERM, SIGINT and SIGQUIT end it; SIGHUP, SIGUSR1 and SIGUSR2 are
// handled or forwarded. These signals are blocked and read from a descriptor:
// otherwise a signal would end the process at once, and its sockets would stay
// behind.
//
// Thread safety: call BlockSignals before there are threads; the rest is safe.
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
// A descriptor that reads the signals (signalfd(2)) without waiting. REQUIRES:
// BlockSignals.
absl::StatusOr<UniqueFd> OpenSignals();
bool IsEndingSignal(int signal);

// Raises the soft limit of open files to the hard limit, and returns it. It is
// also the kernel's limit of descriptors in flight.
int64_t RaiseDescriptorLimit();

// Returns the path of this program, which may have been replaced since by a
// later version; Sibling returns that of another program in its folder.
const std::string& ThisProgram();
std::string Sibling(const std::string& name);

}  // namespace sluice::daemon
