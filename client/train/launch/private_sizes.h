// How large a private daemon's simulated node is for a run.
#pragma once

#include "client/train/launch/options.h"
#include "client/train/launch/private_daemon.h"

namespace sluice::train {

// GPUs: one per rank, of --hbm (default 256 MiB). Host: --host (default 1 GiB).
// `check` wants correctness, not a limit: sizes that any shape of a few
// thousand tokens fits in, and links without a speed limit. Simulated memory
// is sparse, so what is not touched costs nothing.
PrivateDaemon::Options PrivateSizes(const RunOptions& options);

// InvalidArgument: --hbm or --host is more than the machine has, which is what
// simulated memory is made of.
absl::Status CheckPrivateSizes(const RunOptions& options, Bytes machine);
Bytes MachineMemory();  // of it what this process' cgroups leave to it

}  // namespace sluice::train
