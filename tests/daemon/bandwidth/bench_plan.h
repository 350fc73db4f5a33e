// Measures a rank with a plan of tight windows, among ranks that copy all the
// time.
#pragma once

#include <vector>

#include "tests/bench/report.h"

namespace sluice::daemon::bandwidth {

// Runs in simulated time, through the daemon's own grants.
std::vector<bench::Entry> PlanRows();

}  // namespace sluice::daemon::bandwidth
