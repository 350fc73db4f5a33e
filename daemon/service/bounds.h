// Lowers policy's limits to what this process's descriptors allow.
//
// Thread safety: pure functions.
#pragma once

#include "daemon/core/node/types.h"
#include "daemon/quota/quotas.h"

namespace sluice::daemon {

// Returns `node` with its limits lowered to what `shares` (SharesOf) and
// `extents` (ExtentsOf) leave for sessions, extents, waiting leases and kept
// profiles. Each stays at least 1, except for a rank's part of the extents.
NodeConfig Bounded(NodeConfig node, const Shares& shares, const Share& extents);

}  // namespace sluice::daemon
