// The simulated node, which the daemon makes or finds in use.
//
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/node.h"

namespace sluice::daemon {

// Makes the node in `directory`, which `node` then owns. If ranks of an earlier
// daemon use a node there, that node stays as it is and is not owned. Opens the
// node's driver, and adds its links and NUMA nodes to `node`. InvalidArgument:
// the links of [sim] make no tree. Other errors are those of
// device::CreateSimNode.
absl::Status OpenSim(const SimSettings& sim, const std::string& directory,
                     Node& node);

}  // namespace sluice::daemon
