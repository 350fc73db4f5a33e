// The size of a private daemon's simulated node.
#pragma once

#include "client/train/launch/options.h"
#include "client/train/launch/private_daemon.h"

namespace sluice::train {

// Returns the size for one GPU per rank, with --hbm each (default 256 MiB), and
// host memory of --host (default 1 GiB). `check` tests correctness and not
// limits: its defaults fit any shape of a few thousand tokens, and its links
// have no speed limit. Simulated memory is sparse, so memory that is not
// touched costs nothing.
PrivateDaemon::Options PrivateSizes(const RunOptions& options);

// InvalidArgument: --hbm or --host exceeds `machine`, the real memory behind
// the simulated one.
absl::Status CheckPrivateSizes(const RunOptions& options, Bytes machine);
Bytes MachineMemory();  // or its cgroups' limit, if that is less

}  // namespace sluice::train
