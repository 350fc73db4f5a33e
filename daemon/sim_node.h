// The simulated node that a daemon makes, or finds in use.
//
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/node.h"

namespace sluice::daemon {

// Makes the node in `directory`; `node` owns it. A node that ranks of an
// earlier daemon use stays as it is, and is not owned. Opens its driver, and
// adds its links and NUMA nodes. InvalidArgument: the links of [sim] make no
// tree; other errors are device::CreateSimNode's.
absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node);

}  // namespace sluice::daemon
