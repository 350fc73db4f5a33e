// Which versions of the saved state this build writes and reads.
//
// A field more is the same version where those that do not know it may go on
// without it (README.md, Rows). Whatever else changes is a version more, also a
// kind of row: who does not know it refuses the state.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sluice::daemon {

struct StateVersions {
  uint32_t written = 1;
  uint32_t oldest_read = 1;  // of what other builds wrote
  // The oldest build, by what it writes, that reads what this one writes.
  uint32_t oldest_reader = 1;
};

// Defined in a file of its own, so that a test program is of another version
// by defining it itself (tests/golden/next).
extern const StateVersions kStateVersions;

// Whether `own` reads what says so of itself; Unimplemented names both.
absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own = kStateVersions);

}  // namespace sluice::daemon
