// A snapshot as JSON: what `Query` answers and `sluicectl status --json`
// prints. The keys are documented in daemon/README.md.
//
// Thread safety: pure.
#pragma once

#include <string>

#include "daemon/core/snapshot.h"

namespace sluice::daemon {

std::string SnapshotJson(const Snapshot& snapshot);

// Returns only the node and its pools: no user, job, process or cgroup.
std::string AggregatesJson(const Snapshot& snapshot);

}  // namespace sluice::daemon
