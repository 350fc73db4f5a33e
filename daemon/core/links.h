// What lies between a GPU and host memory.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "daemon/core/types.h"

namespace sluice::daemon {

// Indexes into `links`: that of `name`, the one it hangs on, and so on; empty:
// there is no `name`. A parent that is not there, or comes again, is the end.
std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name);

// Whether what is copied over the link `name` loads the link `other` too.
bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other);

}  // namespace sluice::daemon
