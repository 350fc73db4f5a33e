// The settings of the environment variable SLUICE_FAKE_NCCL, such as
// "silent=1,aborts=0".
#pragma once

namespace sluice::fake_nccl {

// Returns whether a rank's death or abort is hidden from the others, as between
// GPUs of one node: there a kernel polls memory for ever, and only its own
// rank's abort ends it.
bool SilentDeaths();

// Returns whether an abort of a communicator is no finding. A run that should
// end well sets aborts=0.
bool AbortsAreFine();

// Returns whether each process writes to stderr at its end how many reduces,
// reduce-scatters, all-gathers and broadcasts it issued.
bool TellsCounts();

}  // namespace sluice::fake_nccl
