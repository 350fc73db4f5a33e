// A run's saves: a failed one is said and tried again, it ends no run.
//
// Collective: all ranks call the same, and all know how it ended. Status
// results are lost peers unless said otherwise.
// Thread safety: one thread per rank.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "client/train/checkpoint/checkpoint.h"
#include "client/train/checkpoint/save_folder.h"
#include "client/train/run_report.h"
#include "client/train/shared_text.h"

namespace sluice::train {

class Saver {
 public:
  // `report` outlives it, and is filled as the run goes on.
  Saver(const StepperContext& context, const RunIdentity& identity,
        SaveReport* report)
      : context_(context), identity_(identity), report_(report) {}

  // Before the first step. `goes_on_from` may be null: a new run. A refusal of
  // the folder is the failing rank's own, CausedByPeer elsewhere.
  absl::Status Claim(const StateFile* goes_on_from);
  // Writes the state after `state.step`, then removes what --keep-checkpoints
  // leaves no room for.
  absl::Status Save(const TrainingState& state, AdamW& optimizer,
                    const runtime::SavedPlan* plan);
  // The last Save's, alike on all ranks; OK: it is there, whole.
  const absl::Status& failure() const { return failure_; }

 private:
  absl::StatusOr<SharedFault> Try(const TrainingState& state, AdamW& optimizer,
                                  const runtime::SavedPlan* plan);

  const StepperContext& context_;  // the trainer's, which outlives this
  RunIdentity identity_;
  SaveReport* report_;
  std::unique_ptr<SaveFolder> folder_;  // rank 0's
  absl::Status failure_;
};

}  // namespace sluice::train
