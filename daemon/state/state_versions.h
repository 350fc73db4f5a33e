// The versions of the saved state that this build writes and reads.
//
// An added field does not change the version if builds that do not know the
// field can ignore it (README.md, Rows). Every other change needs a new
// version, also a new kind of row: a build that does not know it refuses the
// state.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sluice::daemon {

struct StateVersions {
  uint32_t written = 2;
  uint32_t oldest_read = 1;  // oldest version that this build reads
  // Builds that write this version or a later one can read this build's state.
  uint32_t oldest_reader = 1;
};

// Defined in a file of its own, so that a test program can define another
// version (tests/golden/next).
extern const StateVersions kStateVersions;

// Returns OK if this build (`own`) can read a state of version `written`; else
// Unimplemented, which names both versions.
absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own = kStateVersions);

}  // namespace sluice::daemon
