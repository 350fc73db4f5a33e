// Requests to stop: by a signal, or by the daemon when it evicts the job.
// Thread safety: safe; the handler only sets atomics.
#pragma once

namespace sluice::train {

// Makes SIGINT, SIGTERM and SIGHUP (unless ignored) request a stop at the next
// step's end, as RequestStop does.
void InstallStopSignals();
void RequestStop();
bool StopRequested();
// The first signal that requested a stop; 0: none.
int StopSignal();

}  // namespace sluice::train
