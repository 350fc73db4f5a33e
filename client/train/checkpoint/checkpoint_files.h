// Names and small files of a checkpoint, and the search for the one to resume.
// Thread safety: pure functions on files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/train/checkpoint/trainer_state.h"

namespace sluice::train {

std::string WeightsFile(const std::string& folder);
std::string OptimizerFile(const std::string& folder, int rank, int ranks);
std::string PlanFile(const std::string& folder, int rank, int ranks);

// Returns folder/checkpoint-<step>.
std::string CheckpointName(const std::string& folder, int64_t step);
// Returns the steps of a folder's checkpoints, newest first, complete or not.
std::vector<int64_t> StepsIn(const std::string& folder);

// Checks that all files of a resumed run exist and have the sizes that their
// headers state. InvalidArgument or NotFound names what is wrong. OutOfRange (a
// newer program's format) and a shortage do not mean an incomplete checkpoint.
absl::StatusOr<StateFile> ReadWhole(const std::string& folder);

struct FoundCheckpoint {
  std::string path;
  StateFile state;
  std::string passed_over;  // newer incomplete checkpoints, on one line
};
// Returns the checkpoint `path`, or the newest complete checkpoint in the
// folder `path`. Refuses a folder with checkpoints of several runs.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& path);

// Writes a file and syncs it.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace sluice::train
