// Construction, reading and the invariants that span all parts.
#include "daemon/core/core.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {

Core::Core(NodeConfig config, absl::Time now)
    : config_(std::move(config)),
      started_(now),
      budgets_(config_.principal_limits, config_.job_limits,
               config_.named_job_limits),
      slots_(kGrantSlots, false) {
  for (const GpuConfig& gpu : config_.gpus) {
    const PoolId id{PoolKind::kGpu, gpu.index.value()};
    pools_.emplace(id, Pool(id, gpu.pool, config_.extent));
  }
  for (const HostConfig& host : config_.hosts) {
    const PoolId id{PoolKind::kHost, host.numa.value()};
    pools_.emplace(id, Pool(id, host.pool, config_.extent));
  }
  stats_.gpus.resize(config_.gpus.size());
  for (const std::string& warning : config_.warnings) {
    Log(now, EventKind::kStart, warning, {config_.own_uid, ""});
  }
}

absl::StatusOr<Limits> Core::SetBudget(const BudgetTarget& target,
                                       std::optional<Bytes> gpu,
                                       std::optional<Bytes> host,
                                       absl::Time now, const std::string& who) {
  SLUICE_ASSIGN_OR_RETURN(Limits limits, budgets_.Get(target));
  limits.gpu = gpu.value_or(limits.gpu);
  limits.host = host.value_or(limits.host);
  SLUICE_RETURN_IF_ERROR(budgets_.Set(target, limits, {true, who, now}));
  const auto text = [](Bytes limit) {
    return limit == Limits::kUnlimited ? "unlimited" : FormatBytes(limit);
  };
  Log(now, EventKind::kBudget,
      fmt::format("{}: GPU {}, host {}, set by {}",
                  target.job.empty() ? fmt::format("user {}", *target.uid)
                                     : "job " + target.job,
                  text(limits.gpu), text(limits.host),
                  who.empty() ? "an administrator" : Printable(who)),
      {});
  return limits;
}

void Core::Log(absl::Time now, EventKind kind, std::string text,
               const Principal& whose) {
  log_.Add(now, kind, std::move(text), whose);
}

const Session* Core::session(SessionId id) const {
  const auto found = sessions_.find(id);
  return found != sessions_.end() ? &found->second : nullptr;
}

const Principal* Core::ViewerOf(const Session& session) const {
  // uid 0 is often everybody: of containers, of a user namespace's makers.
  const Principal& who = session.peer.principal;
  return who.uid == config_.own_uid && who.uid != 0 && who.cgroup.empty()
             ? nullptr
             : &who;
}

PoolSnapshot Core::pool(PoolId id) const {
  const Pool& pool = pools_.at(id);
  return {id,          pool.total(), pool.leased(),
          pool.free(), pool.kept(),  pool.quarantined()};
}

std::shared_ptr<const plan::NodePlan> Core::FindPlan(
    PlanId id, const Principal* viewer) const {
  const JobKey* owner = rounds_.Owner(id);
  if (!owner || (viewer && owner->principal != *viewer)) return nullptr;
  return rounds_.Find(id);
}

RankSnapshot Core::SnapshotOf(const Session& session) const {
  RankSnapshot rank;
  rank.rank = session.hello.rank;
  rank.pid = session.peer.pid;
  rank.gpu = session.hello.gpu;
  rank.session = session.id;
  rank.closed = session.state == Session::State::kClosed;
  rank.step = session.last_step;
  rank.stall_seconds = session.stall_seconds;
  rank.grant_wait_seconds = session.grant_wait_seconds;
  rank.hbm_peak = session.hbm_peak;
  for (LeaseId lease_id : session.leases) {
    const Lease& lease = leases_.at(lease_id);
    (lease.pool.kind == PoolKind::kGpu ? rank.gpu_bytes : rank.host_bytes) +=
        lease.size;
  }
  return rank;
}

std::vector<JobSnapshot> Core::Jobs(const Principal* viewer) const {
  std::map<JobKey, JobSnapshot> jobs;
  for (const auto& [id, session] : sessions_) {
    if (session.grant_slot < 0) continue;
    if (viewer && session.peer.principal != *viewer) continue;
    const JobKey key = KeyOf(session);
    JobSnapshot& job = jobs[key];
    job.name = key.name;
    job.principal = key.principal;
    job.world_size = session.hello.world_size;
    job.plan = rounds_.current(key);
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
  for (BudgetLine& line : budgets_.Lines()) {
    if (visible(line.principal)) snapshot.budgets.push_back(std::move(line));
  }
  for (LimitLine& line : budgets_.SetLimits()) {
    // Others' limits are theirs; those of jobs bind whoever runs one.
    if (!viewer || !line.target.uid || *line.target.uid == viewer->uid) {
      snapshot.limits.push_back(std::move(line));
    }
  }
  for (const auto& kept : rounds_.kept()) {
    if (visible(kept.job.principal)) {
      snapshot.plans.push_back({kept.job.name, kept.job.principal, kept.plan});
    }
  }
  for (const LoggedEvent& event : log_.events()) {
    if (visible(event.principal)) snapshot.events.push_back(event);
  }
  for (const auto& [id, pool] : pools_) snapshot.extents += pool.extents();
  snapshot.planning = Planning(viewer, now);
  if (!viewer) snapshot.stats = stats_;
  return snapshot;
}

void Core::CheckInvariants() const {
  for (const auto& [id, pool] : pools_) pool.CheckInvariants();
  budgets_.CheckInvariants();
  rounds_.CheckInvariants();
  units_.CheckInvariants();
  CheckPools();
  CheckSessions();
  CheckCharges();
  CheckPlans();
}

// Who is planned with, waits or asks is attached.
void Core::CheckPlans() const {
  std::set<JobKey> attached;
  for (const auto& [id, session] : sessions_) {
    if (session.is_rank()) attached.insert(KeyOf(session));
  }
  for (const auto& [job, member] : members_) {
    SLUICE_CHECK(attached.contains(job));
    SLUICE_CHECK(!member.change || !member.change->open.empty());
  }
  for (const auto& [job, held] : held_) SLUICE_CHECK(members_.contains(job));
  for (const Asking& asking : joining_) {
    SLUICE_CHECK(attached.contains(asking.job));
  }
  for (const WaitingLease& lease : waiting_leases_) {
    SLUICE_CHECK(sessions_.at(lease.session).is_rank());
  }
}

// What pools count as leased is the leases, and what is still being made for
// leases that ended.
void Core::CheckPools() const {
  std::map<PoolId, Bytes> by_pool;
  int making = 0;
  for (const auto& [id, lease] : leases_) {
    Bytes sum;
    for (const Slice& slice : lease.slices) sum += slice.size;
    SLUICE_CHECK(sum == lease.size || !lease.failure.ok());
    SLUICE_CHECK(lease.making == 0 ? lease.granted : !lease.granted);
    SLUICE_CHECK(sessions_.at(lease.session).leases.contains(id));
    by_pool[lease.pool] += sum;
    making += lease.making;
  }
  int orphans = 0;
  for (const auto& [extent, wanted] : making_) {
    if (wanted.second == LeaseId()) ++orphans;
  }
  SLUICE_CHECK(making + orphans == static_cast<int>(making_.size()));
  for (const auto& [id, pool] : pools_) {
    SLUICE_CHECK(orphans > 0 ? pool.leased() >= by_pool[id]
                             : pool.leased() == by_pool[id]);
  }
}

// A lease and a grant slot each belong to one session; a closed one has only
// quarantined memory, a living one none.
void Core::CheckSessions() const {
  size_t leases = 0, slots = 0;
  for (const auto& [id, session] : sessions_) {
    leases += session.leases.size();
    if (session.state == Session::State::kClosed) {
      SLUICE_CHECK(session.leases.empty());
    } else {
      SLUICE_CHECK(session.quarantined_gpu == Bytes(0) &&
                   session.quarantined_host == Bytes(0));
    }
    if (session.is_rank()) {
      SLUICE_CHECK(slots_[session.grant_slot]);
      ++slots;
    }
  }
  std::map<Principal, int> by_principal;
  for (const auto& [id, session] : sessions_) {
    ++by_principal[session.peer.principal];
  }
  for (const auto& [principal, known] : principals_) {
    SLUICE_CHECK(known.sessions == by_principal[principal]);
    SLUICE_CHECK(known.sessions > 0 ||
                 std::any_of(pools_.begin(), pools_.end(), [&](const auto& p) {
                   return p.second.Has(known.id);
                 }));
  }
  SLUICE_CHECK(leases == leases_.size());
  SLUICE_CHECK(slots == static_cast<size_t>(
                            std::count(slots_.begin(), slots_.end(), true)));
}

// What pools hold in quarantine is charged to sessions; budgets charge what is
// leased or in quarantine.
void Core::CheckCharges() const {
  std::map<PoolKind, Bytes> leased, quarantined, owed;
  for (const auto& [id, lease] : leases_) leased[lease.pool.kind] += lease.size;
  for (const auto& [id, pool] : pools_) {
    quarantined[id.kind] += pool.quarantined();
  }
  for (const auto& [id, session] : sessions_) {
    owed[PoolKind::kGpu] += session.quarantined_gpu;
    owed[PoolKind::kHost] += session.quarantined_host;
  }
  Bytes budget_gpu, budget_host;
  for (const BudgetLine& line : budgets_.Lines()) {
    if (!line.job.empty()) continue;
    budget_gpu += line.gpu_used;
    budget_host += line.host_used;
  }
  for (const PoolKind kind : {PoolKind::kGpu, PoolKind::kHost}) {
    SLUICE_CHECK(owed[kind] == quarantined[kind]);
    SLUICE_CHECK((kind == PoolKind::kGpu ? budget_gpu : budget_host) ==
                 leased[kind] + quarantined[kind]);
  }
}

}  // namespace sluice::daemon
