#include "client/train/saver.h"

#include <string>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"

namespace sluice::train {

absl::Status Saver::Claim(const StateFile* goes_on_from) {
  absl::Status status;
  if (context_.environment->rank == 0) {
    auto claimed =
        SaveFolder::Claim(context_.options->save, identity_, goes_on_from);
    status = claimed.status();
    if (claimed.ok()) folder_ = *std::move(claimed);
  }
  return runtime::Agree(context_.collectives, status);
}

absl::StatusOr<SharedFault> Saver::Try(const TrainingState& state,
                                       AdamW& optimizer,
                                       const runtime::SavedPlan* plan) {
  runtime::Collectives* const all = context_.collectives;
  absl::Status own;
  if (folder_ != nullptr) own = folder_->Begin(state.step);
  SLUICE_ASSIGN_OR_RETURN(SharedFault fault, ShareFault(all, own));
  if (!fault.status.ok()) return fault;
  own =
      WriteCheckpoint(SaveFolder::Temporary(context_.options->save, state.step),
                      context_, state, identity_, optimizer, plan);
  SLUICE_ASSIGN_OR_RETURN(fault, ShareFault(all, own));
  if (fault.status.ok()) {
    if (folder_ != nullptr) own = folder_->Commit(state.step);
    SLUICE_ASSIGN_OR_RETURN(fault, ShareFault(all, own));
  }
  // Removes a half written checkpoint, to free its disk space.
  if (!fault.status.ok() && folder_ != nullptr) folder_->Abandon(state.step);
  return fault;
}

absl::Status Saver::Save(const TrainingState& state, AdamW& optimizer,
                         const runtime::SavedPlan* plan) {
  SLUICE_ASSIGN_OR_RETURN(const SharedFault fault, Try(state, optimizer, plan));
  failure_ = fault.status;
  if (!failure_.ok()) {
    report_->failed += 1;
    report_->failed_step = state.step;
    report_->limited_by = LimitedBy(failure_);
    report_->failure = std::string(failure_.message());
    return absl::OkStatus();
  }
  report_->done += 1;
  report_->last_step = state.step;
  if (folder_ != nullptr) folder_->Rotate(context_.options->keep_checkpoints);
  return absl::OkStatus();
}

}  // namespace sluice::train
