// What plans copy, and what of it is promised (planning/demands.h); which of
// ranks' copies were late (late_copies.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"
#include "daemon/core/links.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

bool IsGated(const std::vector<LinkSpeed>& links, const std::string& link,
             int direction) {
  const std::vector<size_t> path = LinkPath(links, link);
  return std::any_of(path.begin(), path.end(), [&](size_t i) {
    return SpeedOf(links[i], direction) > 0;
  });
}

}  // namespace

std::map<SessionId, Core::Copies> Core::CopiesOfPlans() const {
  const std::map<SessionId, PlanDemand> demands = joint_.Demands();
  if (demands.empty()) return {};
  std::vector<LinkUser> users;
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    const auto demand = demands.find(id);
    users.push_back(
        {id, session.peer.principal,
         config_.gpus.at(session.hello.gpu.value()).link,
         demand != demands.end() ? demand->second.rates : CopyRates{}});
  }
  const std::map<SessionId, CopyRates> promised =
      PromiseDemands(config_.links, users);
  std::map<SessionId, Copies> copies;
  for (const auto& [id, demand] : demands) {
    const auto found = promised.find(id);
    copies[id] = {demand,
                  found != promised.end() ? found->second : CopyRates{}};
  }
  return copies;
}

void Core::PromiseAnew(absl::Time now, Effects& effects) {
  if (copies_version_ == joint_.demands_version()) return;
  copies_version_ = joint_.demands_version();
  const std::map<SessionId, Copies> before =
      std::exchange(copies_of_plans_, CopiesOfPlans());
  // Promises that end are given back before others get them.
  for (const auto& [id, copies] : before) {
    const auto still = copies_of_plans_.find(id);
    if (still != copies_of_plans_.end() || !session(id)) continue;
    if (!session(id)->is_rank() || copies.promised == CopyRates{}) continue;
    effects.push_back(PromiseCopies{session(id)->grant_slot, {}});
  }
  for (const auto& [id, copies] : copies_of_plans_) {
    const auto found = before.find(id);
    const Copies old = found != before.end() ? found->second : Copies{};
    if (copies == old) continue;
    if (copies.promised != old.promised) {
      effects.push_back(
          PromiseCopies{session(id)->grant_slot, copies.promised});
    }
    LogUnpromised(*session(id), copies, now);
  }
}

void Core::LateSeen(const std::map<int, LateDirections>& late) {
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

void Core::LogUnpromised(const Session& session, const Copies& copies,
                         absl::Time now) {
  const std::string& link = config_.gpus.at(session.hello.gpu.value()).link;
  for (const int d : {kH2d, kD2h}) {
    if (copies.demand.rates[d] <= 0) continue;
    if (copies.promised[d] > 0 || !IsGated(config_.links, link, d)) continue;
    Log(now, EventKind::kPlan,
        fmt::format("{}: its plan copies {:.2f} GB/s {} the GPU "
                    "over link {}, which is not promised beside others; it "
                    "runs by its fair share",
                    session.Label(), copies.demand.rates[d] / 1e9,
                    d == kH2d ? "to" : "from", link),
        session.peer.principal, {session.id});
  }
}

}  // namespace sluice::daemon
