// The versions of sluiced-next and sluiced-far, daemons of the next release, in
// place of this build's own. This build reads the state of sluiced-next, but
// not that of sluiced-far (SLUICE_FAR).
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
