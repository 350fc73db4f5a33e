// What a GPU's collectives take of it beside the lease.
//
// NCCL allocates by itself, tens to hundreds of MiB per rank: its communicator
// when ranks first sum, connections between pairs when they first exchange.
// What is there before a rank leases counts as held outside, so its lease and
// its plans leave it room; what came later would find a pool without spare
// full. Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"

namespace sluice::runtime {

// Has them taken, and tells the daemon. Collective, of all ranks of `gpus`
// (ConnectDevice's), before any of them leases: REQUIRES RankMemory::Open, and
// not yet Lease. ResourceExhausted: not even a lease of the least size is free,
// which the numbers that travel need until this returns. Unavailable: a
// collective failed.
absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus);

}  // namespace sluice::runtime
