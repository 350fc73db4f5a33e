// Host memory that a job alone on the machine borrows from NUMA nodes without
// ranks.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "daemon/core/ledger.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

// Returns how much host memory `rank` may lease now on a NUMA node other than
// its GPU's. It is 0 unless all ranks of the machine belong to its job, all of
// the job's local ranks are attached, and none is on that node; then half of
// the node's pool is left to the next job.
Bytes Borrowable(const NodeConfig& config, const SessionTable& sessions,
                 const Ledger& ledger, const Session& rank, PoolId pool);

// Returns ok if `asked` is on the NUMA node of the session's GPU, or small
// enough to be borrowed. ResourceExhausted, marked as host memory, otherwise.
absl::Status CheckBorrowing(const NodeConfig& config,
                            const SessionTable& sessions, const Ledger& ledger,
                            const Session& session, const LeaseRequest& asked);

}  // namespace sluice::daemon
