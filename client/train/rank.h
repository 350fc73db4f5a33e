// One rank's run, from its session to its result.
#pragma once

#include "client/train/launch/launcher.h"
#include "client/train/launch/options.h"

namespace sluice::train {

// Trains or checks; writes the result file (or, without a launcher of ours,
// prints). Returns the exit status; under our launcher, which is told by the
// file, that of an interrupted rank is 0.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
