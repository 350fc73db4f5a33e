// What an earlier daemon saved, if this one may go on from it: the one
// judgement of the daemon that takes over and of `sluiced --check-state`.
//
// Thread safety: pure function.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/core/core.h"
#include "daemon/state/state_file.h"

namespace sluice::daemon {

// As ReadCore, and Unimplemented where a session speaks a protocol that this
// daemon does not.
absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    CoreState fresh);

}  // namespace sluice::daemon
