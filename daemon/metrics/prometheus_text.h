// A snapshot in Prometheus' text format. Every metric is explained in
// README.md; names follow https://prometheus.io/docs/practices/naming.
//
// Thread safety: pure.
#pragma once

#include <string>

#include "daemon/core/snapshot.h"

namespace sluice::daemon {

// `snapshot` is a whole one (with statistics).
std::string PrometheusText(const Snapshot& snapshot);

}  // namespace sluice::daemon
