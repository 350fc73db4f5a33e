// What a daemon of the next version would be: linked into sluiced in place of
// this build's own versions.
//
// With SLUICE_FAR this build cannot read its state; otherwise it can.
#include "daemon/state/state_versions.h"
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
