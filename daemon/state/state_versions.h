// Which versions of the saved state this build writes and reads.
//
// An added field is the same version if builds that do not know it may go on
// without it (README.md, Rows). Any other change is a new version, also another
// kind of row: a build that does not know it refuses the state.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sluice::daemon {

struct StateVersions {
  uint32_t written = 2;
  uint32_t oldest_read = 1;  // of what other builds wrote
  // The oldest build, by the version it writes, that reads what this one
  // writes.
  uint32_t oldest_reader = 1;
};

// Defined in a file of its own, so that a test program can have another version
// by its own definition (tests/golden/next).
extern const StateVersions kStateVersions;

// OK if `own` reads what the other wrote; else Unimplemented names both.
absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own = kStateVersions);

}  // namespace sluice::daemon
