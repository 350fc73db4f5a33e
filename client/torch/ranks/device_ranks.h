// Chooses the library for a run's collectives; no other place decides it.
//
// Gloo serves the CPU's tensors (the host's, and those in sim's HBM), NCCL
// serves a GPU's. NCCL comes from a module that is opened here, so a program
// starts without it.
//
// Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// Switches off c10d's watchdog and its monitor, unless the environment sets
// them. The watchdog would end the process if an operation fails or the GPU is
// lost; the monitor would end it if the watchdog hangs. Here a daemon and Abort
// report a rank's end, and the process then says why it ends. Call it before
// ConnectDevice and before the process has threads, which may read the
// environment.
void DisableNcclWatchdog();

// Returns collectives of the ranks of `host` (from Collectives::Connect, or a
// wrapper of it, connected with the same options). `options.device` is this
// rank's. Returns null if the device is the CPU, because `host` serves its
// tensors. Host tensors always travel by `host`, which outlives the result.
// Unavailable: no module, or NCCL did not start; with the reason. The ranks
// must agree on the result, because a rank that connected alone would wait for
// the others.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host);

}  // namespace sluice::runtime
