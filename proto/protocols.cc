// kProtocols has its own file, so that a test program can define other versions
// (tests/golden/next).
#include "proto/wire.h"

namespace sluice::wire {

constinit const Protocols kProtocols;

}  // namespace sluice::wire
