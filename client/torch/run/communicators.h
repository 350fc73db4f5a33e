// Allocates a GPU's communicators before the lease.
//
// NCCL allocates by itself, tens to hundreds of MiB per rank: its communicator
// at the ranks' first sum, and connections between pairs at their first
// exchange. Memory allocated before a rank leases counts as held outside the
// lease, so the lease and the plans leave room for it. A later allocation by
// NCCL would fail if the pool has no spare memory.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"

namespace sluice::runtime {

// Makes NCCL allocate its communicator and connections, and has the session
// measure that memory for the daemon. Collective over all ranks of `gpus` (from
// ConnectDevice), before any of them leases. While it runs, it holds a lease of
// the least size for the numbers that are exchanged. REQUIRES: after
// RankMemory::Open and before Lease. ResourceExhausted: not even a lease of the
// least size is free. Unavailable: a collective failed.
absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus);

}  // namespace sluice::runtime
