#include "daemon/core/stats.h"

namespace sluice::daemon {

void JobStats::Add(const JobStats& more) {
  steps += more.steps;
  tokens += more.tokens;
  stall_seconds += more.stall_seconds;
  grant_wait_seconds += more.grant_wait_seconds;
  plan_mismatches += more.plan_mismatches;
  for (size_t d = 0; d < late.size(); ++d) late[d].Add(more.late[d]);
  step_seconds.Merge(more.step_seconds);
}

void JobSeries::Began(const JobKey& job, absl::Time now) {
  ForgetEnded(now);
  if (Series* series = FindOrNull(jobs_, job)) {
    series->ended.reset();
    return;
  }
  if (jobs_.size() >= kMost) {
    const auto end = [](const auto& each) {
      return each.second.ended.value_or(absl::InfiniteFuture());
    };
    const auto first = std::ranges::min_element(jobs_, {}, end);
    if (!first->second.ended) return;
    jobs_.erase(first);
  }
  jobs_.try_emplace(job);
}

void JobSeries::Ended(const JobKey& job, absl::Time now) {
  if (Series* series = FindOrNull(jobs_, job)) series->ended = now;
}

JobStats& JobSeries::Of(const JobKey& job) {
  Series* series = FindOrNull(jobs_, job);
  return series != nullptr ? series->stats : other_;
}

JobSeries JobSeries::At(absl::Time now) const {
  JobSeries shown = *this;
  shown.ForgetEnded(now);
  return shown;
}

void JobSeries::ForgetEnded(absl::Time now) {
  std::erase_if(jobs_, [&](const auto& entry) {
    return entry.second.ended && *entry.second.ended + kKept <= now;
  });
}

}  // namespace sluice::daemon
