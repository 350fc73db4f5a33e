// Marks a fault that another rank's end caused.
//
// The mark travels with the Status, so every layer in between just returns,
// and whoever watches all ranks looks for the one that failed first.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"

namespace sluice::runtime {

absl::Status CausedByPeer(absl::Status status);
bool IsCausedByPeer(const absl::Status& status);

// Of a collective, or of a question that the daemon asks all ranks:
// Unavailable means that a peer is lost.
absl::Status LostPeer(const absl::Status& status);

}  // namespace sluice::runtime
