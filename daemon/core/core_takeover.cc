// What a daemon does first with what an earlier one saved.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/core.h"

namespace sluice::daemon {

bool Core::has_ranks() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& each) {
    return each.second.grant_slot >= 0;
  });
}

void Core::NotePlansTold(const Effects& effects) {
  for (const Effect& effect : effects) {
    const auto* notice = std::get_if<SendNotice>(&effect);
    if (notice == nullptr) continue;
    const auto* ready = std::get_if<PlanReadyNotice>(&notice->notice);
    Session* to = ready ? sessions_.Find(notice->session) : nullptr;
    if (to != nullptr) to->told_plan = ready->plan;
  }
}

void Core::TellDeaths(const Session& session, Effects& effects) const {
  for (const Session::PeerDeath& death : session.deaths_to_tell) {
    effects.push_back(SendNotice{
        session.id,
        PeerDiedNotice{session.hello.job, death.rank, death.reason}});
  }
}

void Core::NameWhatFaultyGpusHold(absl::Time now) {
  for (const GpuConfig& gpu : config_.gpus) {
    const PoolSnapshot held = pool({PoolKind::kGpu, gpu.index.value()});
    const Bytes bytes = held.total - held.outside;
    if (gpu.fault.empty() || bytes == Bytes(0)) continue;
    std::string by;
    for (const auto& [id, session] : sessions_) {
      if (!session.was_rank() || session.hello.gpu != gpu.index) continue;
      by += (by.empty() ? "" : ", ") + session.Described();
    }
    Log(now, EventKind::kStart,
        fmt::format("{} of {} are held by {}, and come back when it ends",
                    FormatBytes(bytes), Name(held.id), by),
        {config_.own_uid, ""});
  }
}

bool Core::NoticesSent() {
  for (SessionId id : to_tell_) {
    Session* told = sessions_.Find(id);
    if (told != nullptr) told->deaths_to_tell.clear();
  }
  return !std::exchange(to_tell_, {}).empty();
}

Effects Core::TakeOver(const std::set<SessionId>& reached, absl::Time now) {
  Effects effects;
  ledger_.TakeOver(now, effects);
  std::map<SessionId, std::set<RequestId>> worked_on = ledger_.Asking();
  for (const auto& [place, waiter] : waiting_.waiters()) {
    worked_on[waiter.session].insert(waiter.request);
  }
  std::vector<SessionId> lost;
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kClosed) continue;
    if (!reached.contains(id)) {
      lost.push_back(id);
      continue;
    }
    sessions_.Edit(id).history.ForgetRunning(worked_on[id]);
    PlanId plan = session.told_plan;
    if (FindPlan(plan, nullptr) == nullptr) plan = PlanId();
    effects.push_back(SendNotice{id, TakenOverNotice{plan}});
    TellDeaths(session, effects);
  }
  const bool replanned = joint_.TakeOver(now, effects);
  copies_of_plans_ = CopiesOfPlans();
  for (const auto& [id, copies] : copies_of_plans_) {
    if (replanned) LogUnpromised(sessions_.at(id), copies, now);
    if (copies.promised == CopyRates{}) continue;
    effects.push_back(
        PromiseCopies{sessions_.at(id).grant_slot, copies.promised});
  }
  Log(now, EventKind::kStart,
      fmt::format("took over {} session{} from a daemon that ended",
                  reached.size(), reached.size() == 1 ? "" : "s"),
      {config_.own_uid, ""});
  NameWhatFaultyGpusHold(now);
  for (SessionId id : lost) {
    Effects ended = SocketEnded(id, now);
    effects.insert(effects.end(), ended.begin(), ended.end());
  }
  Settle(now, effects);
  return effects;
}

}  // namespace sluice::daemon
