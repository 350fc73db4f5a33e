#include "daemon/state/planning_share.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {

size_t PlanningShare::Entry::bytes() const {
  return std::accumulate(rows.begin(), rows.end(), size_t{0});
}

void PlanningShare::Clear() {
  jobs_.clear();
  users_.clear();
  evicted_.clear();
  total_ = 0;
  news_ = true;
}

void PlanningShare::Set(const JobKey& job, RowKind kind, size_t bytes) {
  const auto at = std::find(kKinds.begin(), kKinds.end(), kind);
  SLUICE_CHECK(at != kKinds.end());
  Entry& entry = jobs_[job];
  size_t& row = entry.rows[static_cast<size_t>(at - kKinds.begin())];
  if (entry.saved) {
    size_t& user = users_[job.principal];
    user += bytes - row;
    total_ += bytes - row;
    if (user == 0) users_.erase(job.principal);
  }
  row = bytes;
  if (entry.bytes() == 0) {
    jobs_.erase(job);
    news_ = true;
  }
  while (total_ > most_) Evict();
}

void PlanningShare::Evict() {
  const auto user = std::max_element(
      users_.begin(), users_.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto size = [&](const auto& each) {
    const bool theirs =
        each.first.principal == user->first && each.second.saved;
    return theirs ? each.second.bytes() : 0;
  };
  const auto job = std::max_element(
      jobs_.begin(), jobs_.end(),
      [&](const auto& a, const auto& b) { return size(a) < size(b); });
  const size_t bytes = size(*job);
  SLUICE_CHECK(bytes > 0);
  job->second.saved = false;
  total_ -= bytes;
  user->second -= bytes;
  if (user->second == 0) users_.erase(user);
  evicted_.push_back(job->first);
  news_ = true;
}

bool PlanningShare::IsSaved(const JobKey& job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.saved;
}

std::vector<JobKey> PlanningShare::TakeEvicted() {
  return std::exchange(evicted_, {});
}

std::vector<LeftOut> PlanningShare::TakeNews() {
  std::vector<LeftOut> news;
  if (!std::exchange(news_, false)) return news;
  std::set<JobKey> left_out;
  for (const auto& [job, entry] : jobs_) {
    if (entry.saved) continue;
    left_out.insert(job);
    if (!told_.contains(job)) news.push_back({job, entry.bytes()});
  }
  told_ = std::move(left_out);
  return news;
}

}  // namespace sluice::daemon
