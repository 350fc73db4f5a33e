// Host memory that a job alone on the machine borrows from NUMA nodes without
// ranks. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

// Returns how much host memory `rank` may lease now on a NUMA node other than
// its GPU's: 0 unless all ranks of the machine belong to its job, all local
// ranks of the job are attached, and none is on that node. Half of the node's
// pool stays free for the next job.
Bytes Borrowable(const NodeConfig& config, const SessionTable& sessions,
                 const Ledger& ledger, const Session& rank, PoolId pool);

// Returns OK if `asked` is on the NUMA node of the session's GPU, or small
// enough to be borrowed; otherwise ResourceExhausted, marked as a shortage of
// host memory.
absl::Status CheckBorrowing(const NodeConfig& config,
                            const SessionTable& sessions, const Ledger& ledger,
                            const Session& session, const LeaseRequest& asked);

}  // namespace sluice::daemon
