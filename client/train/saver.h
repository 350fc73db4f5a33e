// A run's saves. A failed save is reported and tried again; it does not end the
// run.
// Collective: all ranks make the same calls, and all learn the outcome. An
// error means a lost peer, except where a comment says more.
// Thread safety: one thread per rank.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/train/checkpoint/checkpoint.h"
#include "client/train/checkpoint/save_folder.h"
#include "client/train/run_report.h"

namespace sluice::train {

// Returns rank `root`'s text, cut to 999 bytes. Null `collectives`: one rank.
absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root);

// Replaces this rank's `fault` by that of the first rank that failed. An error
// means a lost peer.
absl::Status ShareFault(runtime::Collectives* collectives, absl::Status& fault);

class Saver {
 public:
  // `report` outlives it and is updated during the run.
  Saver(const StepperContext& context, const RunIdentity& identity,
        SaveReport* report)
      : context_(context), identity_(identity), report_(report) {}

  // Claims the folder, before the first step. `goes_on_from` is null for a new
  // run. If the folder is refused, rank 0 returns that error and the others
  // CausedByPeer.
  absl::Status Claim(const StateFile* goes_on_from);
  // Saves, then removes old checkpoints by --keep-checkpoints.
  absl::Status Save(const TrainingState& state, AdamW& optimizer,
                    const runtime::SavedPlan* plan);
  // Returns the outcome of the last Save, equal on all ranks.
  const absl::Status& failure() const { return failure_; }

 private:
  absl::Status Try(const TrainingState& state, AdamW& optimizer,
                   const runtime::SavedPlan* plan);

  const StepperContext& context_;  // the trainer's; outlives this
  RunIdentity identity_;
  SaveReport* report_;
  std::unique_ptr<SaveFolder> folder_;  // rank 0's
  absl::Status failure_;
};

}  // namespace sluice::train
