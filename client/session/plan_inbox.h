// Where the plan that a rank waits for arrives. Internal to client.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"
#include "proto/plan/plan.h"

namespace sluice::client {

// Thread safety: one waiter; Put from any thread.
class PlanInbox {
 public:
  // Forgets what came before: the next Put answers the next profile.
  void Clear();
  void Put(absl::StatusOr<plan::NodePlan> plan);
  // A daemon that took over has no plan for the profile: Await returns Aborted.
  void AskAgain();
  // DeadlineExceeded after `timeout`. Aborted: the profile is to be submitted
  // again.
  absl::StatusOr<plan::NodePlan> Await(absl::Duration timeout);

  // The newest changed plan for a running rank; null: none. Drop forgets that
  // plan, also if it comes again, but not a newer one.
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

// The plan in a sealed memfd.
absl::StatusOr<plan::NodePlan> ReadPlan(const UniqueFd& memfd);

}  // namespace sluice::client
