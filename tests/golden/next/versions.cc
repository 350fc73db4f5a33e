// Versions of a daemon of the next release: linked into sluiced instead of this
// build's own versions.
//
// With SLUICE_FAR this build cannot read that daemon's state; else it can.
#include "daemon/state/state_file.h"
#include "proto/wire.h"

namespace sluice {

constinit const wire::Protocols wire::kProtocols = {
    .oldest = 1, .newest = wire::Protocols().newest + 1};

#ifdef SLUICE_FAR
constexpr uint32_t kOldestReader = daemon::StateVersions().written + 1;
#else
constexpr uint32_t kOldestReader = daemon::StateVersions().written;
#endif

constinit const daemon::StateVersions daemon::kStateVersions = {
    .written = daemon::StateVersions().written + 1,
    .oldest_read = 1,
    .oldest_reader = kOldestReader};

}  // namespace sluice
