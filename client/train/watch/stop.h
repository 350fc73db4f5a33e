// The wish to stop: by a signal, or by the daemon that evicts the job.
// Thread safety: safe; the handler only sets atomics.
#pragma once

namespace sluice::train {

// SIGINT, SIGTERM and SIGHUP (unless ignored) ask for a stop at the next
// step's end, as RequestStop does.
void InstallStopSignals();
void RequestStop();
bool StopRequested();
// The first signal that asked; 0: none did.
int StopSignal();

}  // namespace sluice::train
