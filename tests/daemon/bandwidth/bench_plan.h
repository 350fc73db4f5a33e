// Measures how often a rank with a plan is late among ranks that copy all the
// time.
#pragma once

#include <vector>

#include "tests/bench/report.h"

namespace sluice::daemon::bandwidth {

// Runs the daemon's own grants, in simulated time.
std::vector<bench::Entry> PlanRows();

}  // namespace sluice::daemon::bandwidth
