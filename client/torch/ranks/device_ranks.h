// Chooses the library for a run's collectives: Gloo serves the CPU's tensors
// (the host's, and those in sim's HBM), NCCL a GPU's. NCCL comes from a module
// that is opened here, so a program starts without it.
//
// Thread safety: one thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

namespace c10d {
class Store;
}

namespace sluice::runtime {

// Switches off c10d's watchdog and monitor, unless the environment sets them:
// they would end the process if an operation fails, the GPU is lost, or the
// watchdog hangs. Here a daemon and Abort report a rank's end, and the process
// then says why it ends. Call it before ConnectDevice and before the process
// has threads, which may read the environment.
void DisableNcclWatchdog();

// Connects the ranks of `host` (from Collectives::Connect with the same
// options, or a wrapper of it), which outlives the result and carries host
// tensors. Null if `options.device`, this rank's, is the CPU: `host` serves its
// tensors. Unavailable: no module, or NCCL did not start; with the reason. The
// ranks must agree on the result, because a rank that connected alone would
// wait.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host);

}  // namespace sluice::runtime

// Connects the ranks. `options.device` is this rank's GPU. CPU tensors travel
// by `host`, which has the same ranks and outlives the result. The first
// operation makes the communicator. client/torch/cuda/README.md has the rules:
// Check() after a wait for the stream, one thread that issues, Abort() if a
// peer dies, all ranks meet before they destroy their objects.
extern "C" void sluice_connect_nccl(
    const sluice::runtime::Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store,
    sluice::runtime::Collectives* host,
    absl::StatusOr<std::unique_ptr<sluice::runtime::Collectives>>& connected);
