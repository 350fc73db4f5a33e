// Decides whether a daemon of this node can go on from what an earlier one
// left, before anything of it is touched.
//
// Thread safety: pure but for what it reads from the descriptors.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "daemon/core/state.h"
#include "daemon/core/types.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// `left`: what the starter kept (Starter::stored). OK also where nothing was
// saved. Else as ReadSaved, or FailedPrecondition: the state is damaged, or
// memory that it names is missing.
absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node);

// Checks by name that all extents that must be there were kept.
absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept);

}  // namespace sluice::daemon
