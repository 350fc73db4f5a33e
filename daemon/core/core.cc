// Construction, reading, time, and the invariants that span all parts.
#include "daemon/core/core.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Core::Core(NodeConfig config, absl::Time now)
    : config_(std::move(config)),
      configured_links_(config_.links),
      started_(now),
      ledger_(config_),
      joint_(config_, ledger_, waiting_, journal_),
      slots_(kGrantSlots, false) {
  journal_.stats.gpus.resize(config_.gpus.size());
  for (const std::string& warning : config_.warnings) {
    Log(now, EventKind::kStart, warning, {config_.own_uid, ""});
  }
}

const Session* Core::session(SessionId id) const {
  const auto found = sessions_.find(id);
  return found != sessions_.end() ? &found->second : nullptr;
}

const Principal* Core::ViewerOf(const Session& session) const {
  // Many unrelated processes have uid 0: those of containers, and those that
  // made a user namespace.
  const Principal& who = session.peer.principal;
  return who.uid == config_.own_uid && who.uid != 0 && who.cgroup.empty()
             ? nullptr
             : &who;
}

PoolSnapshot Core::pool(PoolId id) const {
  const Pool& pool = *ledger_.FindPool(id);
  const HeldOutside& outside = ledger_.outside();
  const auto silent = outside.silent.find(id);
  return {.id = id,
          .total = pool.total(),
          .leased = pool.leased(),
          .free = pool.free(),
          .kept = pool.kept(),
          .quarantined = pool.quarantined(),
          .lingering = pool.lingering(),
          .making = pool.making(),
          .outside = pool.outside(),
          .reserved = std::min(ledger_.Withheld(id, nullptr), pool.free()),
          .outside_at =
              silent != outside.silent.end() ? silent->second : outside.at};
}

RankSnapshot Core::SnapshotOf(const Session& session) const {
  RankSnapshot rank;
  rank.rank = session.hello.rank;
  rank.pid = session.peer.pid;
  rank.gpu = session.hello.gpu;
  rank.session = session.id;
  rank.closed = session.state == Session::State::kClosed;
  rank.weight = WeightOf(config_, session.peer.principal);
  if (const auto copies = copies_of_plans_.find(session.id);
      copies != copies_of_plans_.end()) {
    rank.plan_copies = {copies->second.demand, copies->second.promised};
  }
  if (const auto late = late_.find(session.id); late != late_.end()) {
    rank.late = late->second;
  }
  rank.step = session.last_step;
  rank.stall_seconds = session.totals().stall_seconds;
  rank.grant_wait_seconds = session.totals().grant_wait_seconds;
  rank.hbm_peak = session.hbm_peak;
  rank.outside = session.outside;
  rank.gpu_bytes = ledger_.Leased(session.id, PoolKind::kGpu);
  rank.host_bytes = ledger_.Leased(session.id, PoolKind::kHost);
  return rank;
}

std::vector<JobSnapshot> Core::Jobs(const Principal* viewer) const {
  std::map<JobKey, JobSnapshot> jobs;
  for (const auto& [id, session] : sessions_) {
    if (session.grant_slot < 0) continue;
    if (viewer && session.peer.principal != *viewer) continue;
    const JobKey key = session.job();
    JobSnapshot& job = jobs[key];
    job.name = key.name;
    job.principal = key.principal;
    job.world_size = session.hello.world_size;
    job.plan = joint_.CurrentPlan(key);
    job.ranks.push_back(SnapshotOf(session));
  }
  std::vector<JobSnapshot> list;
  for (auto& [key, job] : jobs) {
    std::sort(job.ranks.begin(), job.ranks.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    list.push_back(std::move(job));
  }
  return list;
}

Snapshot Core::TakeSnapshot(const Principal* viewer, absl::Time now) const {
  const auto visible = [&](const Principal& whose) {
    return !viewer || whose == *viewer;
  };
  Snapshot snapshot;
  snapshot.hostname = config_.hostname;
  snapshot.driver = config_.driver;
  snapshot.links = config_.links;
  snapshot.measured = measured_;
  snapshot.measured_waits = links_wait_;
  snapshot.generation = config_.generation;
  snapshot.uptime = now - started_;
  snapshot.now = now;
  for (const GpuConfig& gpu : config_.gpus) {
    snapshot.gpus.push_back({gpu, pool({PoolKind::kGpu, gpu.index.value()})});
  }
  for (const HostConfig& host : config_.hosts) {
    snapshot.hosts.push_back(pool({PoolKind::kHost, host.numa.value()}));
  }
  for (const auto& [id, session] : sessions_) {
    ++snapshot.sessions;
    if (session.state == Session::State::kHalfOpen) ++snapshot.half_open;
  }
  snapshot.jobs = Jobs(viewer);
  for (BudgetLine& line : ledger_.budgets().Lines()) {
    if (visible(line.principal)) snapshot.budgets.push_back(std::move(line));
  }
  for (LimitLine& line : ledger_.budgets().SetLimits()) {
    // Limits of other users are private; those of jobs bind every user.
    if (!viewer || !line.target.uid || *line.target.uid == viewer->uid) {
      snapshot.limits.push_back(std::move(line));
    }
  }
  for (ReservationLine& line : ledger_.ReservationLines()) {
    if (!viewer || line.whose.uid == viewer->uid) {
      snapshot.reservations.push_back(std::move(line));
    }
  }
  snapshot.drain = drain_;
  snapshot.outside_at = ledger_.outside().at;
  snapshot.plans = joint_.Plans(viewer);
  const auto& kept = journal_.log.events();
  snapshot.events_from = kept.empty() ? 0 : journal_.log.dropped() + 1;
  for (const LoggedEvent& event : kept) {
    if (visible(event.principal)) snapshot.events.push_back(event);
  }
  for (const auto& [id, pool] : ledger_.pools())
    snapshot.extents += pool.extents();
  snapshot.planning = joint_.Planning(viewer, now);
  snapshot.waiting = Waiting(viewer, now);
  if (!viewer) {
    snapshot.stats = journal_.stats;
    snapshot.stats->extents = ledger_.extent_counts();
    snapshot.stats->jobs = journal_.stats.jobs.At(now);
  }
  return snapshot;
}

Effects Core::Tick(absl::Time now) {
  Effects effects;
  std::vector<SessionId> late;
  for (SessionId id : half_open_) {
    if (sessions_.at(id).connected_at + config_.hello_timeout > now) break;
    late.push_back(id);
  }
  for (SessionId id : late) {
    Close(sessions_.Edit(id), now, effects);
    Drop(id, now, effects);
    ++journal_.stats.sessions_refused;
  }
  ledger_.AskAgain(now, effects);
  ledger_.Trim(now, effects);
  for (PlanRoundId round : joint_.Overdue(now)) {
    effects.push_back(StopSolving{round});
    Effects failed = PlanSolved(
        round,
        absl::DeadlineExceededError(fmt::format(
            "no plan within {} s: raise time_limit_s in [worker], or use "
            "larger chunks",
            absl::ToDoubleSeconds(config_.plan_time_limit))),
        now);
    effects.insert(effects.end(), failed.begin(), failed.end());
  }
  Settle(now, effects);
  return effects;
}

absl::Time Core::NextDeadline() const {
  absl::Time next = std::min(
      {joint_.NextDeadline(), ledger_.NextDeadline(), waiting_.NextDeadline()});
  if (half_open_.empty()) return next;
  const Session& oldest = sessions_.at(*half_open_.begin());
  return std::min(next, oldest.connected_at + config_.hello_timeout);
}

void Core::Load(CoreState saved) {
  SLUICE_CHECK(sessions_.empty());
  ledger_.Load(saved.ledger);
  joint_.Load(std::move(saved.joint));
  sessions_.Load(std::move(saved.sessions));
  last_session_ = saved.last_session;
  drain_ = std::move(saved.drain);
  waiting_.Load(std::move(saved.waiting));
  for (const auto& [id, session] : sessions_) {
    if (session.is_rank()) slots_[session.grant_slot] = true;
    if (session.state == Session::State::kHalfOpen) half_open_.insert(id);
    if (!session.deaths_to_tell.empty()) to_tell_.insert(id);
    if (session.grant_slot >= 0) {
      journal_.stats.jobs.Began(session.job(), started_);
    }
  }
  copies_of_plans_ = CopiesOfPlans();
  copies_version_ = joint_.demands_version();
}

void Core::TouchAll() {
  EachTable([](auto& table, const auto&) { table.TouchAll(); });
  sessions_.TouchAll();
  for (const auto& [id, session] : sessions_.rows()) {
    sessions_.Edit(id).history.requests().TouchAll();
  }
}

LooseState Core::Loose() const {
  LooseState loose;
  loose.last_session = last_session_;
  ledger_.AddLoose(loose);
  joint_.AddLoose(loose);
  loose.next_place = waiting_.next();
  return loose;
}

void Core::CheckInvariants() const {
  ledger_.CheckInvariants();
  joint_.CheckInvariants();
  CheckSessions();
  CheckWaiting();
}

// A grant slot belongs to one session, and only a session that was attached as
// a rank has an account.
void Core::CheckSessions() const {
  size_t slots = 0;
  for (const auto& [id, session] : sessions_) {
    const bool half_open = session.state == Session::State::kHalfOpen;
    SLUICE_CHECK(half_open == half_open_.contains(id));
    SLUICE_CHECK(ledger_.IsHolder(id) == (session.grant_slot >= 0));
    if (session.is_rank()) {
      SLUICE_CHECK(slots_[session.grant_slot]);
      ++slots;
    }
  }
  for (SessionId id : half_open_) SLUICE_CHECK(sessions_.contains(id));
  SLUICE_CHECK(slots == static_cast<size_t>(
                            std::count(slots_.begin(), slots_.end(), true)));
}

}  // namespace sluice::daemon
