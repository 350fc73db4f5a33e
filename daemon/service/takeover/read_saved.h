// Reads and checks what an earlier daemon saved, in the same way for a takeover
// and for `sluiced --check-state`, before anything is changed.
//
// Thread safety: pure, except for reading from descriptors.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/state/state_file.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Returns the state in `fd` (StateFile::Open). Null: it is void
// (StateFile::Void), so the next daemon starts without state, as if nothing was
// saved.
absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd);

// As ReadCore. `fresh` is a core of this node without sessions: it provides
// what was not saved. Also Unimplemented if a session uses a protocol that this
// daemon does not know, and FailedPrecondition if more memory was made than a
// pool has here, or if a GPU that jobs use has another UUID here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

// Checks whether a daemon of this node can take over what the starter kept
// (Starter::stored). OK also if nothing was saved. Errors as ReadSaved and
// CheckLeft.
absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node);

// FailedPrecondition names an extent that the state needs and that was not
// kept.
absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept);

}  // namespace sluice::daemon
