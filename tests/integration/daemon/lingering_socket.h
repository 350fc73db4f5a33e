// A descriptor whose close takes as long as its sender likes.
#pragma once

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// A TCP socket whose last close waits for a minute: what it has sent is never
// read. `reader` must be kept, or the close is short. Holds none where the
// process may not open more.
UniqueFd LingeringSocket(UniqueFd& reader);

}  // namespace sluice::testing
