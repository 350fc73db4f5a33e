#include "daemon/core/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/core/planning/demands.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

bool IsGated(const std::vector<LinkSpeed>& links, const std::string& link,
             int direction) {
  return std::ranges::any_of(LinkPath(links, link), [&](size_t i) {
    return SpeedOf(links[i], direction) > 0;
  });
}

// The speed assumed for a link of unknown speed. Reported bytes are limited,
// because a false report would distort a sum until the daemon ends.
constexpr double kFastestLink = 1e12;
// Bytes that a session may report beyond what its link could carry so far.
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

std::map<SessionId, PlanCopies> Copies::CopiesOfPlans() const {
  std::map<SessionId, PlanCopies> copies;
  for (const auto& [id, demand] : joint_.Demands()) copies[id].demand = demand;
  if (copies.empty()) return copies;
  std::vector<LinkUser> users;
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    users.push_back({id, session.peer.principal,
                     config_.gpus.at(session.hello.gpu.value()).link,
                     FindOr(copies, id).demand.rates});
  }
  for (const auto& [id, rates] : PromiseDemands(config_.links, users)) {
    copies.at(id).promised = rates;
  }
  return copies;
}

void Copies::Promise(absl::Time now, Effects& effects) {
  if (version_ == joint_.demands_version()) return;
  version_ = joint_.demands_version();
  const std::map<SessionId, PlanCopies> before =
      std::exchange(promised_, CopiesOfPlans());
  // The promises that end are sent before those that grow.
  for (const auto& [id, copies] : before) {
    const Session* const session = sessions_.Find(id);
    if (promised_.contains(id) || !session || !session->is_rank()) continue;
    if (copies.promised == CopyRates{}) continue;
    effects.push_back(PromiseCopies{session->grant_slot, {}});
  }
  SendChanges(before, true, now, effects);
}

void Copies::SendChanges(const std::map<SessionId, PlanCopies>& before,
                         bool logs, absl::Time now, Effects& effects) {
  for (const auto& [id, copies] : promised_) {
    const PlanCopies old = FindOr(before, id);
    if (copies == old) continue;
    const Session& session = sessions_.at(id);
    if (logs) LogUnpromised(session, copies, now);
    if (copies.promised == old.promised) continue;
    effects.push_back(PromiseCopies{session.grant_slot, copies.promised});
  }
}

void Copies::LogUnpromised(const Session& session, const PlanCopies& copies,
                           absl::Time now) {
  const std::string& link = config_.gpus.at(session.hello.gpu.value()).link;
  for (const int d : {kH2d, kD2h}) {
    if (copies.demand.rates[d] <= 0) continue;
    if (copies.promised[d] > 0 || !IsGated(config_.links, link, d)) continue;
    journal_.LogOf(
        session, now, EventKind::kPlan,
        fmt::format("{}: its plan copies {:.2f} GB/s {} the GPU "
                    "over link {}, more than the link has left to promise; "
                    "it gets its fair share",
                    session.Label(), copies.demand.rates[d] / 1e9,
                    d == kH2d ? "to" : "from", link));
  }
}

void Copies::Reported(Session& session, const StepReportRequest& report,
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
  Count(session);
  job.step_seconds.Observe(step.seconds);
  journal_.stats.grant_wait_seconds.Observe(step.grant_wait_seconds);
  for (const double seconds : report.map_seconds) {
    journal_.stats.map_seconds.Observe(seconds);
  }
}

void Copies::Seen(const std::map<int, Directions>& used,
                  const std::map<int, LateDirections>& late) {
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    const Directions* seen = FindOrNull(used, session.grant_slot);
    if (seen != nullptr && *seen != session.copies_seen) {
      Session& copied = sessions_.Edit(id);
      copied.copies_seen = *seen;
      Count(copied);
    }
    const LateDirections* sums = FindOrNull(late, session.grant_slot);
    if (sums == nullptr) continue;
    LateDirections& counted = late_[id];
    if (*sums == counted) continue;
    for (const int d : {kH2d, kD2h}) {
      const LateCopies more = {(*sums)[d].copies - counted[d].copies,
                               (*sums)[d].seconds - counted[d].seconds};
      journal_.stats.gpus[session.hello.gpu.value()].late[d].Add(more);
      journal_.stats.jobs.Of(session.job()).late[d].Add(more);
    }
    counted = *sums;
  }
}

void Copies::Count(Session& session) {
  GpuStats& gpu = journal_.stats.gpus[session.hello.gpu.value()];
  for (const int d : {kH2d, kD2h}) {
    const uint64_t now =
        std::max(session.copies_reported[d], session.copies_seen[d]);
    uint64_t& counted = session.copies_counted[d];
    if (now <= counted) continue;  // counters never decrease
    Bytes& sum = d == kH2d ? gpu.h2d : gpu.d2h;
    uint64_t bytes = sum.size();
    AddUpTo(INT64_MAX, now - counted, bytes);
    sum = Bytes(static_cast<int64_t>(bytes));
    counted = now;
  }
}

}  // namespace sluice::daemon
