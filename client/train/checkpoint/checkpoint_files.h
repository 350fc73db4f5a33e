// Names and small files of a checkpoint.
// Thread safety: pure functions on files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/train/options.h"

namespace sluice::train {

std::string WeightsFile(const std::string& folder);
std::string OptimizerFile(const std::string& folder, int rank, int ranks);
std::string PlanFile(const std::string& folder, int rank, int ranks);

// trainer_state.json.
struct StateFile {
  int64_t step = 0, next_sequence = 0;
  int ranks = 1;
};
absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state);
// Checks that the options are those of the run that wrote it.
absl::StatusOr<StateFile> ReadState(const std::string& folder,
                                    const RunOptions& options);

// What a saved plan was made for; another text means another plan.
std::string PlanKey(const RunOptions& options, int ranks, Bytes hbm);

// folder itself when it is a checkpoint, else its checkpoint of the last step.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path);

// InvalidArgument: no checkpoint could be written there. Leaves nothing new.
absl::Status CheckSaveFolder(const std::string& folder);
// The folder to write to, empty; what an earlier attempt left is removed.
absl::StatusOr<std::string> BeginFolder(const std::string& folder,
                                        int64_t step);
// Puts it in its place, over one of the same step.
absl::Status CommitFolder(const std::string& temporary,
                          const std::string& folder, int64_t step);
void RemoveFolder(const std::string& temporary);

// Writes and syncs.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace sluice::train
