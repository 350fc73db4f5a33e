// Marks a fault that another rank's end caused.
//
// The place that waited for the other rank marks its status: a collective, the
// daemon's word that a peer died. The mark travels with it, so every layer in
// between just returns it, and the process that watches all ranks looks for the
// rank that failed first. A code cannot tell: Unavailable is also a lost GPU.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"

namespace sluice {

absl::Status CausedByPeer(absl::Status status);
bool IsCausedByPeer(const absl::Status& status);

}  // namespace sluice
