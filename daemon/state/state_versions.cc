#include "daemon/state/state_versions.h"

namespace sluice::daemon {

constinit const StateVersions kStateVersions;

}  // namespace sluice::daemon
