#include "client/session/plan_inbox.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/codec.h"
#include "proto/wire.h"

namespace sluice::client {

void PlanInbox::Clear() {
  const MutexLock lock(mutex_);
  plan_.reset();
  ask_again_ = false;
}

void PlanInbox::AskAgain() {
  {
    const MutexLock lock(mutex_);
    ask_again_ = true;
  }
  changed_.NotifyAll();
}

void PlanInbox::Put(absl::StatusOr<plan::NodePlan> plan) {
  {
    const MutexLock lock(mutex_);
    // The first answer counts: a plan stays valid if a peer dies later.
    if (!plan_) plan_ = std::move(plan);
  }
  changed_.NotifyAll();
}

absl::StatusOr<plan::NodePlan> PlanInbox::Await(absl::Duration timeout) {
  const auto deadline = CondVar::Deadline(timeout);
  const MutexLock lock(mutex_);
  while (!plan_ && !ask_again_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  if (!plan_ && ask_again_) {
    return absl::AbortedError("another daemon took over: ask it again");
  }
  if (!plan_) {
    return absl::DeadlineExceededError(fmt::format(
        "no plan after {}: have all local ranks of the job sent a profile?",
        FormatSpan(timeout)));
  }
  return *std::exchange(plan_, std::nullopt);
}

void PlanInbox::PutChanged(plan::NodePlan plan) {
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  const MutexLock lock(mutex_);
  if (shared->id != dropped_) changed_plan_ = std::move(shared);
}

std::shared_ptr<const plan::NodePlan> PlanInbox::changed() const {
  const MutexLock lock(mutex_);
  return changed_plan_;
}

void PlanInbox::DropChanged(PlanId plan) {
  const MutexLock lock(mutex_);
  dropped_ = plan;
  if (changed_plan_ != nullptr && changed_plan_->id == plan) {
    changed_plan_.reset();
  }
}

absl::StatusOr<plan::NodePlan> ReadPlan(const UniqueFd& memfd) {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, wire::FromMemfd(memfd));
  return plan::DecodeNodePlan(bytes);
}

}  // namespace sluice::client
