#include "daemon/service/plan_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/wire.h"

namespace sluice::daemon {

absl::StatusOr<std::shared_ptr<const UniqueFd>> PlanFiles::Of(PlanId plan,
                                                              absl::Time now) {
  if (const auto known = files_.find(plan); known != files_.end()) {
    return known->second.fd;
  }
  const auto kept = core_->planning().FindPlan(plan, /*viewer=*/nullptr);
  if (kept == nullptr) {
    return absl::NotFoundError(
        fmt::format("plan {} is not kept any more", plan.value()));
  }
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd,
                          wire::ToMemfd("sluice plan", plan::Encode(*kept)));
  if (files_.size() >= PlanRounds::kPlansKept) files_.erase(files_.begin());
  auto shared = std::make_shared<const UniqueFd>(std::move(fd));
  files_[plan] = {shared, now + kKept};
  return shared;
}

absl::Time PlanFiles::deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [plan, file] : files_) next = std::min(next, file.drop_at);
  return next;
}

void PlanFiles::Expire(absl::Time now) {
  std::erase_if(files_,
                [now](const auto& each) { return each.second.drop_at <= now; });
}

}  // namespace sluice::daemon
