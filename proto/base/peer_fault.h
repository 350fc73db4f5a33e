// Marks a fault that the end of another rank caused.
//
// The code that waited for the other rank marks its status: a collective, or
// the handler of the daemon's event that a peer died. The mark travels with the
// status, so the layers between only return it. The process that watches all
// ranks then ignores marked faults and looks for the rank that failed first. A
// status code does not suffice: a lost GPU is Unavailable too.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"

namespace sluice {

absl::Status CausedByPeer(absl::Status status);
bool IsCausedByPeer(const absl::Status& status);

}  // namespace sluice
