// The settings of SLUICE_FAKE_NCCL, a list like SLUICE_FAKE_CUDA:
// "silent=1,aborts=0".
#pragma once

namespace sluice::fake_nccl {

// Whether deaths and aborts of a rank are not reported to others. So it is
// between GPUs of one node, where a kernel waits in memory for ever and only
// its own rank's abort ends it.
bool SilentDeaths();

// If false, an aborted communicator is a finding, with its unfinished
// operations. For runs that should end well.
bool AbortsAreFine();

// Whether each process reports on stderr at its end how many collectives it
// issued.
bool TellsCounts();

}  // namespace sluice::fake_nccl
