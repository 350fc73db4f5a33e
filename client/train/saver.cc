#include "client/train/saver.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

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

absl::StatusOr<SharedFault> ShareFault(runtime::Collectives* collectives,
                                       const absl::Status& own) {
  if (collectives == nullptr) return SharedFault{own};
  const int world = collectives->world_size();
  int first = world;
  {
    const runtime::HostScope host("faults of the ranks");
    at::Tensor failed = at::zeros({world}, runtime::OnHost(at::kDouble));
    double* const values = failed.data_ptr<double>();
    values[collectives->rank()] = own.ok() ? 0 : 1;
    SLUICE_RETURN_IF_ERROR(collectives->SumAll(failed));
    for (int rank = world - 1; rank >= 0; --rank) {
      if (values[rank] > 0) first = rank;
    }
  }
  if (first == world) return SharedFault{};
  SLUICE_ASSIGN_OR_RETURN(
      const std::string text,
      ShareText(collectives,
                fmt::format("{} {} {}", static_cast<int>(own.code()),
                            Name(ShortageOf(own)), std::string(own.message())),
                first));
  const size_t code_end = text.find(' ');
  const size_t word_end = text.find(' ', code_end + 1);
  if (code_end == std::string::npos || word_end == std::string::npos) {
    return SharedFault{absl::InternalError("another rank failed")};
  }
  const auto code = static_cast<absl::StatusCode>(std::atoi(text.c_str()));
  const std::string word = text.substr(code_end + 1, word_end - code_end - 1);
  return SharedFault{Mark(
      absl::Status(
          code, fmt::format("rank {}: {}", first, text.substr(word_end + 1))),
      ShortageNamed(word).value_or(Shortage::kNone))};
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
