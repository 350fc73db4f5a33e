// Reads what an earlier daemon saved, and judges it alike for a takeover and
// for `sluiced --check-state`.
//
// Thread safety: pure but for what OpenSaved reads from the descriptor.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/state/state_file.h"

namespace sluice::daemon {

// The state in `fd` (StateFile::Open). Null: it is void (StateFile::Void), so
// the next daemon begins anew, as where nothing was saved.
absl::StatusOr<std::unique_ptr<StateFile>> OpenSaved(int fd);

// As ReadCore. `fresh` is a core of this node that no client has reached: it
// fills what was not saved. Also Unimplemented if a session speaks a protocol
// that this daemon does not, FailedPrecondition if more memory was made than a
// pool has here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

}  // namespace sluice::daemon
