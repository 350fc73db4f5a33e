// Runs one rank, from its session to its result. Thread safety: one thread. All
// ranks make the same calls together.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"
#include "client/train/run_report.h"

namespace sluice::train {

struct StepperContext;

// Returns the exit status. An interrupted rank returns 0 under our launcher,
// which learns of the interruption from the result file.
int RunRank(const RunOptions& options, const RankEnvironment& environment);

// Trains or probes (trainer.cc). `report` is updated during the run, so that it
// is complete even if the run fails.
absl::Status Train(const StepperContext& context, RunReport* report);

// Returns rank `root`'s text, cut to 999 bytes. `collectives` is null if there
// is one rank.
absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root);
// Replaces `fault` by the fault of the lowest rank that failed. An error means
// a lost peer.
absl::Status ShareFault(runtime::Collectives* collectives, absl::Status& fault);

// Measures what the cost model needs to know of a machine (profile.cc), and
// writes it to `toml`, equal on all ranks, as planner/train's hardware profile.
// `collectives` is null if there is one rank.
absl::Status MeasureMachine(const RunOptions& options,
                            runtime::RankMemory& memory,
                            runtime::Collectives* collectives,
                            std::string* toml);

}  // namespace sluice::train
