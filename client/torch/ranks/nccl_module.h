// What the module sluice_torch_nccl exports (client/torch/cuda/nccl_ranks.cc):
// collectives between GPUs, c10d's ProcessGroupNCCL.
//
// Operations are enqueued, not awaited: the thread's current stream waits for
// them (for those of BeginSumScatter and BeginGather at AwaitBegun), the host
// does not. So Ok means that an operation was issued, and code
// that waits for the stream asks Check() then. One thread issues all of
// them, sequence parallelism's, sums of gradients and the sharded optimizer's
// alike: NCCL wants one order on every rank. There is one communicator.
//
// A dead peer is no error to NCCL within a node: its kernels wait for ever.
// Abort() ends them; the daemon's word of a dead peer is what calls it. c10d's
// own watchdog, which ends processes, is off: see DisableNcclWatchdog.
//
// A run that ends well waits for its stream, asks Check(), and meets the others
// (Barrier): then what was connected is destroyed, on every rank, which waits
// for NCCL's own end. After an Abort it does not wait.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"

// `options.device` is this rank's GPU. The tensors of the CPU travel by `host`,
// which has the same ranks and outlives what is made. The communicator is made
// by the first operation.
extern "C" void sluice_connect_nccl(
    const sluice::runtime::Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store,
    sluice::runtime::Collectives* host,
    absl::StatusOr<std::unique_ptr<sluice::runtime::Collectives>>& connected);
