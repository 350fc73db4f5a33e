// A descriptor that takes as long to close as its sender likes.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// A TCP socket that waits for a minute at its last close: what it has sent is
// never read. `reader` must be kept, or the close is short. Empty if the
// process may not open more.
UniqueFd LingeringSocket(UniqueFd& reader);

}  // namespace sluice::testing
