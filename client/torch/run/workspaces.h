// Allocates the workspaces of a GPU's libraries before a segment is recorded.
//
// Torch has a workspace for cuBLAS, and one for cuBLASLt, for each thread and
// stream. The first product allocates it through the current allocator, so from
// the lease, and the workspace stays. If that happened inside a segment, a
// calibration would record memory that no other execution asks for.
//
// NCCL's memory, tens to hundreds of MiB per rank, is allocated before the
// lease: it then counts as held outside, and leases and plans leave room for
// it. A later allocation would fail if the pool has no spare memory.
//
// Thread safety: of the thread that will compute, on its stream.
#pragma once

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

class RankMemory;

// Sets CUBLAS_WORKSPACE_CONFIG, unless the environment has it: 32 MiB, which
// NVIDIA recommends from Hopper on, and with which results repeat from run to
// run. Torch's own choice depends on the GPU. Call it before torch's first
// product on a GPU, and before the process has threads.
void ChooseWorkspaceSize();

// Runs a product of each kind that a step has. Does nothing on the CPU. Throws
// c10::OutOfMemoryError if the lease has no room.
void TakeWorkspaces(c10::Device device);

// Frees the workspaces. Call it before their lease ends, when no product runs
// any more: a later product would use memory that is gone.
void DropWorkspaces(c10::Device device);

// Makes NCCL allocate its communicator and connections, and has the session
// measure that memory for the daemon. Collective over all ranks of `gpus` (from
// ConnectDevice), after RankMemory::Open and before any rank leases.
// ResourceExhausted: not even a lease of the least size is free, which it holds
// meanwhile. Unavailable: a collective failed.
absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus);

}  // namespace sluice::runtime
