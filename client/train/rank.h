// Runs one rank, from its session to its result.
#pragma once

#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {

// Trains or checks, and writes the result file or, without our launcher,
// prints. Returns the exit status. An interrupted rank returns 0 under our
// launcher, which learns of the interruption from the result file.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
