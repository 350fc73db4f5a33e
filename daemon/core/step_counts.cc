#include "daemon/core/step_counts.h"

#include <algorithm>

#include "daemon/core/links.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

// What a rank may have copied at most, whatever it reports: what its link
// carries, and some slack. A sum that a lie has filled stays wrong for as long
// as the daemon lives.
constexpr double kFastestLink = 1e12;  // bytes per second, where none is known
// Bytes; a report may come long after its copies.
constexpr double kReportSlack = 64.0 * (1 << 30);

uint64_t MostCopied(double bytes_per_second, absl::Duration since) {
  const double rate = bytes_per_second > 0 ? bytes_per_second : kFastestLink;
  const double most = kReportSlack + rate * absl::ToDoubleSeconds(since);
  return static_cast<uint64_t>(std::min(most, 0x1p62));
}

void AddUpTo(uint64_t most, uint64_t more, uint64_t& sum) {
  sum = more < most - std::min(sum, most) ? sum + more : std::max(sum, most);
}

}  // namespace

void StepCounts::Reported(Session& session, const StepReportRequest& report,
                          absl::Time now) {
  StepReport step = report.step;
  const StepTotals counted = session.totals();
  if (step.totals.reports == 0) step.totals = Plus(counted, step);
  const StepTotals more = Since(counted, step.totals);
  session.last_step = step;
  session.hbm_peak = std::max(session.hbm_peak, step.hbm_peak);
  JobStats& job = journal_.stats.jobs.Of(session.job());
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.reports), job.steps);
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.tokens), job.tokens);
  job.stall_seconds += more.stall_seconds;
  job.grant_wait_seconds += more.grant_wait_seconds;
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.plan_mismatches),
          job.plan_mismatches);
  const std::vector<size_t> path =
      LinkPath(config_.links, config_.gpus.at(session.hello.gpu.value()).link);
  const LinkSpeed link = path.empty() ? LinkSpeed{} : config_.links[path[0]];
  const absl::Duration since = now - session.connected_at;
  AddUpTo(MostCopied(SpeedOf(link, kH2d), since), more.h2d.size(),
          session.copies_reported[kH2d]);
  AddUpTo(MostCopied(SpeedOf(link, kD2h), since), more.d2h.size(),
          session.copies_reported[kD2h]);
  CountCopies(session);
  job.step_seconds.Observe(step.seconds);
  journal_.stats.grant_wait_seconds.Observe(step.grant_wait_seconds);
  for (const double seconds : report.map_seconds) {
    journal_.stats.map_seconds.Observe(seconds);
  }
}

void StepCounts::CopiesSeen(const std::map<int, Directions>& used) {
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    const auto seen = used.find(session.grant_slot);
    if (seen == used.end() || seen->second == session.copies_seen) continue;
    Session& copied = sessions_.Edit(id);
    copied.copies_seen = seen->second;
    CountCopies(copied);
  }
}

void StepCounts::CountCopies(Session& session) {
  GpuStats& gpu = journal_.stats.gpus[session.hello.gpu.value()];
  for (const int d : {kH2d, kD2h}) {
    const uint64_t now =
        std::max(session.copies_reported[d], session.copies_seen[d]);
    uint64_t& counted = session.copies_counted[d];
    if (now <= counted) continue;  // counters never fall
    Bytes& sum = d == kH2d ? gpu.h2d : gpu.d2h;
    uint64_t bytes = sum.size();
    AddUpTo(INT64_MAX, now - counted, bytes);
    sum = Bytes(static_cast<int64_t>(bytes));
    counted = now;
  }
}

void StepCounts::LateSeen(const std::map<int, LateDirections>& late) {
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    const auto seen = late.find(session.grant_slot);
    if (seen == late.end()) continue;
    LateDirections& counted = late_[id];
    if (seen->second == counted) continue;
    for (const int d : {kH2d, kD2h}) {
      const LateCopies more = {seen->second[d].copies - counted[d].copies,
                               seen->second[d].seconds - counted[d].seconds};
      journal_.stats.gpus[session.hello.gpu.value()].late[d].Add(more);
      journal_.stats.jobs.Of(session.job()).late[d].Add(more);
    }
    counted = seen->second;
  }
}

LateDirections StepCounts::LateOf(SessionId session) const {
  const auto late = late_.find(session);
  return late != late_.end() ? late->second : LateDirections{};
}

}  // namespace sluice::daemon
