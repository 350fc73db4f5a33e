// Receives the plan that a rank waits for. Internal to client.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"
#include "proto/plan/plan.h"

namespace sluice::client {

// Thread safety: one thread waits; any thread may call the other methods.
class PlanInbox {
 public:
  // Forgets earlier answers, so that the next Put answers the next profile.
  void Clear();
  void Put(absl::StatusOr<plan::NodePlan> plan);
  // Makes Await return Aborted: a daemon that took over has no plan.
  void AskAgain();
  // DeadlineExceeded: `timeout` passed. Aborted: submit the profile again.
  absl::StatusOr<plan::NodePlan> Await(absl::Duration timeout);

  // Keep the newest changed plan (null: none). DropChanged forgets that plan,
  // even if it arrives again, but not a newer one.
  void PutChanged(plan::NodePlan plan);
  std::shared_ptr<const plan::NodePlan> changed() const;
  void DropChanged(PlanId plan);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<absl::StatusOr<plan::NodePlan>> plan_ ABSL_GUARDED_BY(mutex_);
  bool ask_again_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const plan::NodePlan> changed_plan_ ABSL_GUARDED_BY(mutex_);
  PlanId dropped_ ABSL_GUARDED_BY(mutex_);
};

// Reads a plan from a sealed memfd.
absl::StatusOr<plan::NodePlan> ReadPlan(const UniqueFd& memfd);

}  // namespace sluice::client
