// SLUICE_FAKE_NCCL, a list as SLUICE_FAKE_CUDA: "silent=1,aborts=0".
#pragma once

namespace sluice::fake_nccl {

// No rank is told that another died or aborted, as between GPUs of one node,
// where a kernel waits in memory for ever: only its own rank's abort ends it.
bool SilentDeaths();

// No: a communicator that is aborted is a finding, with what it had still to
// do. For runs that are to end well.
bool AbortsAreFine();

// Each process says on stderr at its end how many collectives it issued.
bool TellsCounts();

}  // namespace sluice::fake_nccl
