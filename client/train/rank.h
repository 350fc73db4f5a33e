// Runs one rank, from its session to its result.
#pragma once

#include "client/train/launch/launcher.h"
#include "client/train/launch/options.h"

namespace sluice::train {

// Trains or checks, and writes the result file or, without our launcher,
// prints. Returns the exit status. Under our launcher, which reads the file, an
// interrupted rank returns 0.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
