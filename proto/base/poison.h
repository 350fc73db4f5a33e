// Returns whether this process writes NaN into memory that must not be read:
// freed blocks, and buffers before their bytes arrive. SLUICE_POISON=1 in the
// environment switches this on, for tests and debugging. The variable is read
// at the first call.
#pragma once

namespace sluice {

bool PoisonsBuffers();

}  // namespace sluice
