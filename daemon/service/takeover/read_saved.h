// Reads and checks what an earlier daemon saved, before anything is changed. A
// takeover and `sluiced --check-state` do this in the same way.
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

// Opens the state in `fd` with StateFile::Open. Returns null if the state is
// void (StateFile::Void): the daemon then starts as if nothing was saved.
absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd);

// Reads the state with ReadCore. `fresh` is a core of this node without
// sessions, from which comes what was not saved. Errors as ReadCore, and
// besides: Unimplemented if a session uses a protocol that this daemon does not
// know; FailedPrecondition if more memory was made than a pool has here, or if
// a GPU that jobs use has another UUID here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

// Checks whether a daemon of this node can take over what the starter kept
// (Starter::stored). Returns OK also if nothing was saved. Errors as ReadSaved
// and CheckLeft.
absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node);

// Checks that every extent that the state needs was kept. FailedPrecondition
// names one that was not.
absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept);

}  // namespace sluice::daemon
