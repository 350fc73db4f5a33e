// Allocates a GPU's communicators before the lease.
//
// NCCL allocates by itself, tens to hundreds of MiB per rank: its communicator
// at the ranks' first sum, and connections between pairs at their first
// exchange. What exists before a rank leases counts as held outside, so its
// lease and its plans leave room for it. What NCCL allocated later would fail
// if the pool has no spare memory. Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"

namespace sluice::runtime {

// Makes NCCL allocate them, and tells the daemon. Collective over all ranks of
// `gpus` (ConnectDevice's), before any of them leases. REQUIRES: after
// RankMemory::Open and before Lease. ResourceExhausted: not even a lease of the
// least size is free, which holds the numbers that travel until this returns.
// Unavailable: a collective failed.
absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus);

}  // namespace sluice::runtime
