#include "client/train/saver.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_split.h"
#include "client/torch/memory/host_scope.h"
#include "client/torch/placement.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {

absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root) {
  if (collectives == nullptr) return text;
  // The text is in host memory, because HBM may have run out.
  const runtime::HostScope host("a text of the ranks");
  constexpr size_t kTextBytes = 1000;
  at::Tensor bytes = at::zeros({kTextBytes}, runtime::OnHost(at::kByte));
  char* const data = static_cast<char*>(bytes.data_ptr());
  std::memcpy(data, text.data(), std::min(text.size(), kTextBytes - 1));
  SLUICE_RETURN_IF_ERROR(collectives->Broadcast(bytes, root));
  return std::string(data);
}

absl::Status ShareFault(runtime::Collectives* collectives,
                        absl::Status& fault) {
  if (collectives == nullptr) return absl::OkStatus();
  const int world = collectives->world_size();
  int first = 0;
  {
    const runtime::HostScope host("faults of the ranks");
    at::Tensor failed = at::zeros({world}, runtime::OnHost(at::kDouble));
    double* const values = failed.data_ptr<double>();
    values[collectives->rank()] = fault.ok() ? 0 : 1;
    SLUICE_RETURN_IF_ERROR(collectives->SumAll(failed));
    while (first < world && values[first] == 0) ++first;
  }
  if (first == world) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      const std::string text,
      ShareText(
          collectives,
          fmt::format("{} {} {}", static_cast<int>(fault.code()),
                      Name(ShortageOf(fault)), std::string(fault.message())),
          first));
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 2));
  if (parts.size() < 3) {
    fault = absl::InternalError("another rank failed");
    return absl::OkStatus();
  }
  const auto code = static_cast<absl::StatusCode>(std::atoi(text.c_str()));
  fault = Mark(absl::Status(code, fmt::format("rank {}: {}", first, parts[2])),
               ShortageNamed(parts[1]).value_or(Shortage::kNone));
  return absl::OkStatus();
}

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

absl::Status Saver::Try(const TrainingState& state, AdamW& optimizer,
                        const runtime::SavedPlan* plan) {
  runtime::Collectives* const all = context_.collectives;
  failure_ = absl::OkStatus();
  if (folder_ != nullptr) failure_ = folder_->Begin(state.step);
  SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
  if (!failure_.ok()) return absl::OkStatus();
  failure_ =
      WriteCheckpoint(SaveFolder::Temporary(context_.options->save, state.step),
                      context_, state, identity_, optimizer, plan);
  SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
  if (failure_.ok()) {
    if (folder_ != nullptr) failure_ = folder_->Commit(state.step);
    SLUICE_RETURN_IF_ERROR(ShareFault(all, failure_));
  }
  // Removes a half written checkpoint, to free its disk space.
  if (!failure_.ok() && folder_ != nullptr) folder_->Abandon(state.step);
  return absl::OkStatus();
}

absl::Status Saver::Save(const TrainingState& state, AdamW& optimizer,
                         const runtime::SavedPlan* plan) {
  SLUICE_RETURN_IF_ERROR(Try(state, optimizer, plan));
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
