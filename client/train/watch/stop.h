// Requests to stop: by a signal, or by the daemon when it evicts the job.
// Thread safety: safe; the handler only sets atomics.
#pragma once

namespace sluice::train {

// Makes SIGINT, SIGTERM and SIGHUP (unless ignored) call RequestStop: the run
// stops at the end of the step.
void InstallStopSignals();
void RequestStop();
bool StopRequested();
// Returns the first signal that requested a stop; 0: none.
int StopSignal();

}  // namespace sluice::train
