// One rank's run, from its session to its result.
#pragma once

#include "client/train/launcher.h"
#include "client/train/options.h"

namespace sluice::train {

// Trains or checks; writes the result file (or, without a launcher of ours,
// prints). Returns the exit status.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
