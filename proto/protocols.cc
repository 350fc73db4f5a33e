// In a file of its own, so that a test program speaks others by defining them
// itself (tests/golden/next).
#include "proto/wire.h"

namespace sluice::wire {

constinit const Protocols kProtocols;

}  // namespace sluice::wire
