#include "daemon/core/job_series.h"

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
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) {
    found->second.ended.reset();
  } else if (jobs_.size() < kMost || MakeRoom()) {
    jobs_.try_emplace(job);
  }
}

void JobSeries::Ended(const JobKey& job, absl::Time now) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.ended = now;
}

JobStats& JobSeries::Of(const JobKey& job) {
  const auto found = jobs_.find(job);
  return found != jobs_.end() ? found->second.stats : other_;
}

JobSeries JobSeries::At(absl::Time now) const {
  JobSeries shown = *this;
  shown.ForgetEnded(now);
  return shown;
}

const JobSeries::Series* JobSeries::Find(const JobKey& job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() ? &found->second : nullptr;
}

void JobSeries::ForgetEnded(absl::Time now) {
  std::erase_if(jobs_, [&](const auto& entry) {
    return entry.second.ended && *entry.second.ended + kKept <= now;
  });
}

bool JobSeries::MakeRoom() {
  auto first = jobs_.end();
  for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
    if (!at->second.ended) continue;
    if (first == jobs_.end() || *at->second.ended < *first->second.ended) {
      first = at;
    }
  }
  if (first == jobs_.end()) return false;
  jobs_.erase(first);
  return true;
}

}  // namespace sluice::daemon
