// Checkpoints: Hugging Face's files, and beside them what it takes to go on.
//
//   checkpoint-120/
//     config.json, model.safetensors     what any other tool reads
//     trainer_state.json                 run, step, data cursor, model, ranks
//     optimizer-0-of-2.safetensors, …    a rank's m, v, master, RNG
//     plan-0-of-2.json, …                a rank's profile and the plan
//
// A checkpoint is written beside its place under another name and renamed
// when all ranks have written and synced theirs (saver.h): it is there whole
// or not at all. Resumed on as many ranks and threads it goes on bit for bit;
// on another number of ranks within rounding (the owners of buckets change, and
// the plan is made anew).
//
// Errors: InvalidArgument, one line: which file, what is broken in it.
// Thread safety: one thread per rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/train/checkpoint/trainer_state.h"
#include "client/train/optimizer/adamw.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

struct TrainingState {
  int64_t step = 0;        // done
  int64_t next_token = 0;  // the data cursor
};

// This rank's files of the checkpoint into `folder`, which is there. `plan`
// may be null.
absl::Status WriteCheckpoint(const std::string& folder,
                             const StepperContext& context,
                             const TrainingState& state,
                             const RunIdentity& identity, AdamW& optimizer,
                             const runtime::SavedPlan* plan);

struct Checkpoint {
  std::string path;
  std::string passed_over;  // newer ones that are not whole, in a line
  StateFile state;
  stream::ModelShape model;
  int rank = 0;  // the reader
  int world_size = 1;

  // InvalidArgument: it was made from another text, and not --allow-other-data.
  absl::Status CheckData(const RunOptions& options,
                         const RunIdentity& now) const;
  // Which checkpoint, which step, which run, in a line for people.
  std::string Describe() const;

  absl::Status LoadWeights(FlatModel& weights, runtime::HostStage& stage) const;
  // After the optimizer was made: its states were zero.
  absl::Status LoadOptimizer(AdamW& optimizer, runtime::HostStage& stage) const;
  // Only if it was made for this run's shape, ranks, alpha and HBM. NotFound
  // with the reason, for people.
  absl::StatusOr<runtime::SavedPlan> LoadPlan(
      const StepperContext& context) const;
  // How the saved plan's step was cut, whatever it was made for.
  std::optional<stream::Settings> LoadSettings() const;

 private:
  class Shards;
};

// `path` is a checkpoint, or a folder of them: then the newest whole one.
// Refuses one of another model or dtype, naming the flag.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path,
                                          const RunOptions& options,
                                          const RankEnvironment& environment);

}  // namespace sluice::train
