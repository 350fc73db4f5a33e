// Runs one rank, from its session to its result. Thread safety: one thread.
#pragma once

#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {

// Returns the exit status. An interrupted rank returns 0 under our launcher,
// which learns of the interruption from the result file.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
