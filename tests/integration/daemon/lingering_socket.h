// A descriptor that takes a minute to close.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// Returns a TCP socket that waits for a minute at its last close, as nothing
// reads what it has sent. Stores the other end in `reader`, which must stay
// open. Returns an empty descriptor if a socket cannot be made.
UniqueFd LingeringSocket(UniqueFd& reader);

}  // namespace sluice::testing
