// The export of the module sluice_torch_nccl (client/torch/cuda/nccl_ranks.cc):
// collectives between GPUs, over c10d's ProcessGroupNCCL.
//
// Operations are enqueued, not awaited. The thread's current stream waits for
// them (for those of BeginSumScatter and BeginGather at AwaitBegun); the host
// does not. So Ok only means that an operation was issued: after a wait for the
// stream, the caller must call Check(). One thread issues all operations
// (sequence parallelism's, the sums of gradients and the sharded optimizer's),
// because NCCL needs one order on every rank. There is one communicator.
//
// NCCL does not report a dead peer within a node: its kernels wait forever.
// Abort() ends them; it is called when the daemon reports a dead peer. c10d's
// own watchdog, which ends processes, is off: see DisableNcclWatchdog.
//
// A run that ends well waits for its stream, calls Check(), and meets the
// others (Barrier). Then every rank destroys its object; the destructor waits
// until NCCL has shut down, except after an Abort.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

// Connects the ranks. `options.device` is this rank's GPU. CPU tensors travel
// by `host`, which has the same ranks and outlives the result. The first
// operation makes the communicator.
extern "C" void sluice_connect_nccl(
    const sluice::runtime::Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store,
    sluice::runtime::Collectives* host,
    absl::StatusOr<std::unique_ptr<sluice::runtime::Collectives>>& connected);
