#include "daemon/state/state_file.h"

namespace sluice::daemon {

constinit const StateVersions kStateVersions;

}  // namespace sluice::daemon
