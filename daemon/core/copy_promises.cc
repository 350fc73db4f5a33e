#include "daemon/core/copy_promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

const PlanCopies* CopyPromises::Of(SessionId session) const {
  const auto found = copies_.find(session);
  return found != copies_.end() ? &found->second : nullptr;
}

std::map<SessionId, PlanCopies> CopyPromises::CopiesOfPlans() const {
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
  std::map<SessionId, PlanCopies> copies;
  for (const auto& [id, demand] : demands) {
    const auto found = promised.find(id);
    copies[id] = {demand,
                  found != promised.end() ? found->second : CopyRates{}};
  }
  return copies;
}

void CopyPromises::Renew(absl::Time now, Effects& effects) {
  if (version_ == joint_.demands_version()) return;
  version_ = joint_.demands_version();
  const std::map<SessionId, PlanCopies> before =
      std::exchange(copies_, CopiesOfPlans());
  // Promises that end are given back before others get them.
  for (const auto& [id, copies] : before) {
    const Session* const session = sessions_.Find(id);
    if (copies_.contains(id) || !session || !session->is_rank()) continue;
    if (copies.promised == CopyRates{}) continue;
    effects.push_back(PromiseCopies{session->grant_slot, {}});
  }
  for (const auto& [id, copies] : copies_) {
    const auto found = before.find(id);
    const PlanCopies old = found != before.end() ? found->second : PlanCopies{};
    if (copies == old) continue;
    const Session& session = sessions_.at(id);
    if (copies.promised != old.promised) {
      effects.push_back(PromiseCopies{session.grant_slot, copies.promised});
    }
    LogUnpromised(session, copies, now);
  }
}

void CopyPromises::Load() {
  copies_ = CopiesOfPlans();
  version_ = joint_.demands_version();
}

void CopyPromises::TakeOver(bool replanned, absl::Time now, Effects& effects) {
  copies_ = CopiesOfPlans();
  for (const auto& [id, copies] : copies_) {
    const Session& session = sessions_.at(id);
    if (replanned) LogUnpromised(session, copies, now);
    if (copies.promised == CopyRates{}) continue;
    effects.push_back(PromiseCopies{session.grant_slot, copies.promised});
  }
}

void CopyPromises::LogUnpromised(const Session& session,
                                 const PlanCopies& copies, absl::Time now) {
  const std::string& link = config_.gpus.at(session.hello.gpu.value()).link;
  for (const int d : {kH2d, kD2h}) {
    if (copies.demand.rates[d] <= 0) continue;
    if (copies.promised[d] > 0 || !IsGated(config_.links, link, d)) continue;
    journal_.Log(
        now, EventKind::kPlan,
        fmt::format("{}: its plan copies {:.2f} GB/s {} the GPU "
                    "over link {}, which is not promised beside others; it "
                    "runs by its fair share",
                    session.Label(), copies.demand.rates[d] / 1e9,
                    d == kH2d ? "to" : "from", link),
        session.peer.principal, {session.id});
  }
}

}  // namespace sluice::daemon
