// Which library a run's tensors travel by: the one place that decides.
//
// The CPU's (the host's, and those in sim's HBM) by Gloo, a GPU's by NCCL, out
// of a module that is opened here, so that a program starts without it.
// Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// Before the process has threads, which may read the environment, and before
// ConnectDevice. c10d's watchdog would end the process when an operation fails
// or the GPU is lost, its monitor when the watchdog hangs. A rank's end is told
// by its daemon and by Abort, and the process then says why; so both are off,
// unless the environment has them already.
void DisableNcclWatchdog();

// Collectives of the ranks of `host` (Collectives::Connect's, or one that hands
// on to it, connected by the same options); `options.device` is this rank's.
// Null: the device is the CPU, and `host` does it all. Host tensors travel by
// `host`, which outlives it. Unavailable: no module, or NCCL did not start;
// with the reason. To be agreed on: a rank alone would wait for the others.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host);

}  // namespace sluice::runtime
