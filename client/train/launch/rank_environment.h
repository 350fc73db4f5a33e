// A rank's place in the run, from the program that started it: our launcher and
// torchrun set RANK and its like; srun sets variables of its own, which are
// translated. What cannot be known is asked for, never guessed.
// Thread safety: pure functions of the environment given.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/train/launch/launcher.h"

namespace sluice::train {

// A variable's value; nullopt: it is not set.
using Variables = std::function<std::optional<std::string>(const char*)>;

// RANK is set, or srun started more than one task. (The batch script of
// sbatch is no step of several tasks: there a launcher may run.)
bool IsRank(const Variables& variables);

// InvalidArgument: which variable is missing or broken, and what to export.
absl::StatusOr<RankEnvironment> ReadRankEnvironment(const Variables& variables);

}  // namespace sluice::train
