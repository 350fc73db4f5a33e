// Lowers policy's limits to what this process's descriptors allow.
//
// Thread safety: pure functions.
#pragma once

#include "daemon/core/node/types.h"
#include "daemon/quota/quotas.h"

namespace sluice::daemon {

// Returns `node` with its limits of sessions, extents, waiting leases and kept
// profiles lowered to what `shares` (SharesOf) and `extents` (ExtentsOf) allow.
// Each stays at least 1, except for a rank's part of the extents.
NodeConfig Bounded(NodeConfig node, const Shares& shares, const Share& extents);

}  // namespace sluice::daemon
