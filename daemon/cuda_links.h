// The links between a node's GPUs and its memory on cuda, and their speeds.
//
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/node.h"

namespace sluice::daemon {

// Adds the links that sysfs below `root` lists (pci_links.h). A link has the
// speeds that [cuda] gives it, or none if [cuda] does not name it. Adds each
// GPU's path and the limits to the node's description. InvalidArgument: [cuda]
// names a link that does not exist, or its speeds make no tree of links.
absl::Status AddCudaLinks(const CudaSettings& cuda, const std::string& root,
                          Node& node);

}  // namespace sluice::daemon
