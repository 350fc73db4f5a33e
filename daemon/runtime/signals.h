// The signals that the daemon and its keeper take.
//
// Each is blocked before there are threads and read from a signalfd; else it
// would end the process and leave its sockets.
//
// Thread safety: safe.
#pragma once

#include <signal.h>

namespace sluice::daemon {

// Whether it ends the daemon: SIGTERM, SIGINT, SIGQUIT.
bool IsEndingSignal(int signal);
// These, and those that are noted or handed on: SIGHUP, SIGUSR1, SIGUSR2.
sigset_t TakenSignals();

}  // namespace sluice::daemon
