// Reads a rank's place in the run from its environment. Our launcher and
// torchrun set RANK and related variables; srun sets others, which are
// translated. A value that cannot be derived is an error that says what to
// export, never a guess.
// Thread safety: pure functions of the environment given.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/train/launch/launcher.h"

namespace sluice::train {

// Returns a variable's value; nullopt if it is not set.
using Variables = std::function<std::optional<std::string>(const char*)>;

// Returns whether RANK is set or srun started more than one task. (The batch
// script of sbatch is not a step of several tasks, so a launcher may run
// there.)
bool IsRank(const Variables& variables);

// InvalidArgument: a variable is missing or invalid; the message names it and
// says what to export.
absl::StatusOr<RankEnvironment> ReadRankEnvironment(const Variables& variables);

}  // namespace sluice::train
