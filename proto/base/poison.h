// Whether this process fills with NaN what must not be read: freed blocks, and
// buffers whose bytes have not arrived. SLUICE_POISON=1 in the environment
// switches it on; tests and debugging use it. Read once, at the first call.
#pragma once

namespace sluice {

bool PoisonsBuffers();

}  // namespace sluice
