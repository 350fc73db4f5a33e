// What an earlier daemon saved, if this one may go on from it: the one
// judgement of the daemon that takes over and of `sluiced --check-state`.
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

// As ReadCore into what `fresh`, a core of this node that nobody has reached,
// saves; and Unimplemented where a session speaks a protocol that this daemon
// does not, FailedPrecondition where more memory was made than a pool has here.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    const Core& fresh);

}  // namespace sluice::daemon
