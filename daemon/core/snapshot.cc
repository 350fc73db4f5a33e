#include <algorithm>
#include <map>
#include <utility>

#include "daemon/core/core.h"

namespace sluice::daemon {
namespace {

RankSnapshot SnapshotOf(const Core& core, const Session& session) {
  const PlanCopies* copies = core.copies().PromisedTo(session.id);
  return {.rank = session.hello.rank,
          .pid = session.peer.pid,
          .gpu = session.hello.gpu,
          .session = session.id,
          .gpu_bytes = core.ledger().Leased(session.id, PoolKind::kGpu),
          .host_bytes = core.ledger().Leased(session.id, PoolKind::kHost),
          .closed = session.state == Session::State::kClosed,
          .weight = core.config().WeightOf(session.peer.principal),
          .plan_copies = copies ? std::optional(*copies) : std::nullopt,
          .step = session.last_step,
          .stall_seconds = session.totals().stall_seconds,
          .grant_wait_seconds = session.totals().grant_wait_seconds,
          .late = core.copies().LateOf(session.id),
          .hbm_peak = session.hbm_peak,
          .outside = session.outside};
}

std::vector<JobSnapshot> JobsOf(const Core& core, const Principal* viewer) {
  std::map<JobKey, JobSnapshot> jobs;
  for (const auto& [id, session] : core.sessions()) {
    if (!session.was_rank()) continue;
    if (viewer && session.peer.principal != *viewer) continue;
    const JobKey key = session.job();
    JobSnapshot& job = jobs[key];
    job.name = key.name;
    job.principal = key.principal;
    job.world_size = session.hello.world_size;
    job.plan = core.planning().CurrentPlan(key);
    job.ranks.push_back(SnapshotOf(core, session));
  }
  std::vector<JobSnapshot> list;
  for (auto& [key, job] : jobs) {
    std::ranges::sort(job.ranks, {}, &RankSnapshot::rank);
    list.push_back(std::move(job));
  }
  return list;
}

}  // namespace

PoolSnapshot SnapshotOf(const Ledger& ledger, PoolId id) {
  const Pool& pool = *ledger.FindPool(id);
  const HeldOutside& outside = ledger.outside();
  return {.id = id,
          .total = pool.total(),
          .leased = pool.leased(),
          .free = pool.free(),
          .kept = pool.kept(),
          .quarantined = pool.quarantined(),
          .lingering = pool.lingering(),
          .making = pool.making(),
          .outside = pool.outside(),
          .reserved = std::min(ledger.Withheld(id, nullptr), pool.free()),
          .outside_at = FindOr(outside.silent, id, outside.at)};
}

Snapshot SnapshotOf(const Core& core, const Principal* viewer, absl::Time now) {
  const auto visible = [&](const Principal& whose) {
    return !viewer || whose == *viewer;
  };
  Snapshot snapshot;
  snapshot.hostname = core.config().hostname;
  snapshot.driver = core.config().driver;
  snapshot.links = core.config().links;
  snapshot.measured = core.live_policy().measured();
  snapshot.measured_waits = core.live_policy().measured_waits();
  snapshot.generation = core.config().generation;
  snapshot.uptime = now - core.started();
  snapshot.now = now;
  for (const GpuConfig& gpu : core.config().gpus) {
    snapshot.gpus.push_back(
        {gpu, core.pool({PoolKind::kGpu, gpu.index.value()})});
  }
  for (const HostConfig& host : core.config().hosts) {
    snapshot.hosts.push_back(core.pool({PoolKind::kHost, host.numa.value()}));
  }
  for (const auto& [id, session] : core.sessions()) {
    ++snapshot.sessions;
    if (session.state == Session::State::kHalfOpen) ++snapshot.half_open;
  }
  snapshot.jobs = JobsOf(core, viewer);
  for (BudgetLine& line : core.ledger().budgets().Lines()) {
    if (visible(line.principal)) snapshot.budgets.push_back(std::move(line));
  }
  for (LimitLine& line : core.ledger().budgets().SetLimits()) {
    // The limits of other users are omitted; limits of jobs bind every user.
    if (!viewer || !line.target.uid || *line.target.uid == viewer->uid) {
      snapshot.limits.push_back(std::move(line));
    }
  }
  for (ReservationLine& line : core.ledger().ReservationLines()) {
    if (!viewer || line.whose.uid == viewer->uid) {
      snapshot.reservations.push_back(std::move(line));
    }
  }
  snapshot.drain = core.live_policy().drain();
  snapshot.outside_at = core.ledger().outside().at;
  snapshot.plans = core.planning().Plans(viewer);
  const auto& kept = core.log().events();
  snapshot.events_from = kept.empty() ? 0 : core.log().dropped() + 1;
  for (const LoggedEvent& event : kept) {
    if (visible(event.principal)) snapshot.events.push_back(event);
  }
  for (const auto& [id, pool] : core.ledger().pools()) {
    snapshot.extents += pool.extents();
  }
  snapshot.planning = core.planning().Planning(viewer, now);
  snapshot.waiting = core.leases().Waiting(viewer, now);
  if (!viewer) {
    snapshot.stats = core.stats();
    snapshot.stats->extents = core.ledger().extent_counts();
    snapshot.stats->jobs = core.stats().jobs.At(now);
  }
  return snapshot;
}

}  // namespace sluice::daemon
