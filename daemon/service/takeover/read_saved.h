// Reads what an earlier daemon saved, and judges it alike for a takeover and
// for `sluiced --check-state`, before anything of it is touched.
//
// Thread safety: pure but for what is read from descriptors.
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

// The state in `fd` (StateFile::Open). Null: it is void (StateFile::Void), so
// the next daemon begins anew, as where nothing was saved.
absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd);

// As ReadCore. `fresh` is a core of this node that no client has reached: it
// fills what was not saved. Also Unimplemented if a session speaks a protocol
// that this daemon does not, FailedPrecondition if more memory was made than a
// pool has here, or if a GPU that jobs use has another UUID here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

// Whether a daemon of this node can go on from what the starter kept
// (Starter::stored). OK also where nothing was saved. Else as ReadSaved and
// CheckLeft.
absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node);

// FailedPrecondition: an extent that must be there was not kept, by its name.
absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept);

}  // namespace sluice::daemon
