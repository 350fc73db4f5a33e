// Whether this process fills with NaN what must not be read: freed blocks, and
// buffers before their bytes arrive. SLUICE_POISON=1 in the environment
// switches it on; tests and debugging use it. Read once, at the first call.
#pragma once

namespace sluice {

bool PoisonsBuffers();

}  // namespace sluice
