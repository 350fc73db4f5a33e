// What lies between a node's GPUs and its memory on cuda, and how fast it is.
//
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/node.h"

namespace sluice::daemon {

// Adds the links that sysfs tells of (pci_links.h), below `root`, with the
// speeds that [cuda] gives them; one that it does not name has none. The node's
// description gets each GPU's path and the limits. InvalidArgument: [cuda]
// names a link that is not here, or the speeds make no tree of links.
absl::Status AddCudaLinks(const CudaSettings& cuda, const std::string& root,
                          Node& node);

}  // namespace sluice::daemon
