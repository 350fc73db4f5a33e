// The administrators' service of a frozen daemon: answers why it is frozen, its
// kept state and the names of what is kept beside it, so that another version
// can say whether it would go on from them (`sluiced --check-state`).
//
// Thread safety: safe, as gRPC calls it from its own threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Serves on the unix socket `path` as long as the returned object lives.
// `state`: the kept state's descriptor; empty: there is none. `kept`: the names
// of all that is kept.
absl::StatusOr<std::shared_ptr<void>> ServeFrozenAdmin(
    const std::string& path, absl::Status why, UniqueFd state,
    std::vector<std::string> kept);

}  // namespace sluice::daemon
