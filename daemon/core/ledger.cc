#include "daemon/core/ledger.h"

#include <fmt/format.h>

#include <string>

#include "daemon/quota/quotas.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Ledger::Ledger(const NodeConfig& config)
    : granularity_(config.granularity),
      limits_(config.extent_limits),
      budgets_(config.principal_limits, config.job_limits,
               config.named_job_limits),
      allowances_(limits_.changes_per_second,
                  static_cast<double>(limits_.each)) {
  const auto add = [&](PoolId id, const auto& of) {
    pools_.emplace(id, Pool(id, of.pool, config.extent.of(id.kind),
                            OutsideHolders(config.driver)));
    spare_[id] = of.spare;
  };
  for (const GpuConfig& gpu : config.gpus) {
    const PoolId id{PoolKind::kGpu, gpu.index.value()};
    add(id, gpu);
    if (!gpu.fault.empty()) faulty_.insert(id);
  }
  SetOutside({});
  for (const HostConfig& host : config.hosts) {
    add({PoolKind::kHost, host.numa.value()}, host);
  }
}

void Ledger::ForgetPrincipals() {
  principals_.EraseIf([&](const Principal&, const KnownPrincipal& known) {
    return known.holders == 0 && Owned(known.id) == 0;
  });
}

void Ledger::EraseHolder(SessionId session, absl::Time now) {
  KnownPrincipal& known = principals_.Edit(holders_.at(session).job.principal);
  holders_.erase(session);
  if (--known.holders > 0) return;
  known.alone_since = now;
  ForgetPrincipals();
}

void Ledger::Open(SessionId session, const JobKey& job) {
  KnownPrincipal* known = principals_.Find(job.principal);
  if (known == nullptr) {
    known = &principals_.Insert(job.principal);
    known->id = PrincipalId(rest_.next_principal++);
  }
  ++known->holders;
  ++known->open;
  known->alone_since = absl::InfiniteFuture();
  const PrincipalId heir = known->id;
  holders_.Insert(session, {.job = job, .principal = heir});
  bool inherits = false;
  for (const auto& [who, ended] : principals_) {
    if (ended.holders > 0 || !Inherits(who, job.principal)) continue;
    inherits = true;
    // Idle host memory goes to the heir, up to its limit of extents.
    for (auto& [id, pool] : pools_) {
      if (id.kind != PoolKind::kHost) continue;
      const size_t room = limits_.each - std::min(Owned(heir), limits_.each);
      for (ExtentId each : pool.OldestKept(room, {}, ended.id)) {
        pool.GiveTo(each, heir);
      }
    }
  }
  if (inherits) ForgetPrincipals();
}

bool Ledger::Close(SessionId session, absl::Time now, Effects& effects) {
  HolderState& holder = holders_.Edit(session);
  SLUICE_CHECK(holder.state == HolderState::State::kOpen);
  holder.state = HolderState::State::kClosed;
  --principals_.Edit(holder.job.principal).open;
  const bool had_leases = !holder.leases.empty();
  while (!holder.leases.empty()) End(*holder.leases.begin(), now);
  AskNow(now, effects);
  return had_leases;
}

void Ledger::Merge(SessionId from, SessionId to, absl::Time now) {
  SLUICE_CHECK(HoldsNothing(from));
  for (auto& [id, pool] : pools_) pool.TransferHolds(from, to);
  EraseHolder(from, now);
}

void Ledger::Gone(SessionId session, absl::Time now, Effects& effects) {
  const HolderState* holder = FindOrNull(holders_, session);
  if (holder == nullptr) return;
  SLUICE_CHECK(holder->state == HolderState::State::kClosed);
  for (auto& [id, pool] : pools_) {
    const Pool::Left left = pool.HolderGone(session);
    for (ExtentId extent : left.unquarantined) {
      Linger(extent, id, holder->job, LingeringState::Origin::kOrphaned);
    }
    for (ExtentId extent : left.alone) {
      lingering_.Edit(extent).answer = LingeringState::Answer::kNotYet;
      to_ask_.push_back(extent);
    }
  }
  EraseHolder(session, now);
  AskNow(now, effects);
}

absl::Status Ledger::CheckPool(PoolId pool) const {
  if (FindPool(pool)) return absl::OkStatus();
  size_t gpus = 0;
  for (const auto& [id, each] : pools_) gpus += id.kind == PoolKind::kGpu;
  return absl::NotFoundError(
      fmt::format("no {} here: this node has {} GPUs and {} NUMA nodes",
                  Name(pool), gpus, pools_.size() - gpus));
}

absl::Status Ledger::CheckAsked(const LeaseRequest& asked) const {
  SLUICE_RETURN_IF_ERROR(CheckPool(asked.pool));
  if (asked.size <= Bytes(0) ||
      asked.size.count() % granularity_.count() != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "a lease of {} bytes is not a positive multiple of the granularity, "
        "{}",
        asked.size.count(), FormatBytes(granularity_)));
  }
  return absl::OkStatus();
}

Ledger::Asked Ledger::Lease(SessionId session, RequestId request,
                            const LeaseRequest& asked, absl::Time now,
                            Effects& effects) {
  // at(), not Edit(): a refusal changes nothing, so the row need not be saved.
  const HolderState& holder = holders_.at(session);
  SLUICE_CHECK(holder.state == HolderState::State::kOpen);
  if (absl::Status wrong = CheckAsked(asked); !wrong.ok()) {
    return {{std::move(wrong), RefusedBy::kBudget}, std::nullopt};
  }
  Pool& pool = pools_.at(asked.pool);
  const auto [parts, by] = Choose(holder, asked);
  if (!parts.ok()) return {{parts.status(), by}, std::nullopt};
  auto idle = MakeRoom(holder, asked.pool, *parts, now);
  if (!idle.ok()) {
    ChargeLingering(parts->reuse, true);
    return {{idle.status(), RefusedBy::kExtents}, std::nullopt};
  }
  for (ExtentId id : parts->reuse) lingering_.erase(id);
  auto taken = pool.Take(holder.principal, *parts, ExtentId(rest_.next_extent));
  rest_.next_extent += taken.make.size();
  const LeaseId id(rest_.next_lease++);
  LeaseState& lease = leases_.Insert(id);
  lease.session = session;
  lease.request = request;
  lease.pool = asked.pool;
  for (const Slice& slice : taken.slices) lease.size += slice.size;
  lease.making = static_cast<int>(taken.make.size());
  lease.slices = std::move(taken.slices);
  lease.asked_at = now;
  budgets_.Charge(holder.job, asked.pool.kind, lease.size);
  recharged_.insert(holder.job.principal);
  for (ExtentId gone : parts->destroy) effects.push_back(DestroyExtent{gone});
  if (!parts->destroy.empty()) ForgetPrincipals();
  Destroy(*idle, effects);
  for (const Slice& slice : taken.make) {
    making_.Insert(slice.id, {asked.pool, id});
    effects.push_back(
        MakeExtent{slice.id, asked.pool, slice.size, holder.principal});
  }
  counts_.destroyed += parts->destroy.size();
  counts_.reused += lease.slices.size() - taken.make.size();
  holders_.Edit(session).leases.insert(id);
  if (lease.making > 0) return {};
  return {{}, Finish(id, now, effects)};
}

Ledger::Decided Ledger::Finish(LeaseId id, absl::Time now, Effects& effects) {
  LeaseState& lease = leases_.Edit(id);
  SLUICE_CHECK(lease.making == 0);
  if (lease.state == LeaseState::State::kFailing) {
    const Decided failed{id, lease};
    End(id, now);
    AskNow(now, effects);
    return failed;
  }
  lease.state = LeaseState::State::kGranted;
  Pool& pool = pools_.at(lease.pool);
  for (const Slice& slice : lease.slices) {
    pool.AddHolder(slice.id, lease.session);
  }
  return {id, lease};
}

RequestId Ledger::End(LeaseId id, absl::Time now) {
  const LeaseState& lease = leases_.Edit(id);
  HolderState& holder = holders_.Edit(lease.session);
  Pool& pool = pools_.at(lease.pool);
  const bool hold = holder.state == HolderState::State::kClosed &&
                    lease.state == LeaseState::State::kGranted;
  Bytes refund;
  for (const Slice& slice : lease.slices) {
    if (MakingState* making = making_.Find(slice.id)) {
      making->lease.reset();  // the extent is returned when it is made
      refund += slice.size;
    } else if (hold) {
      pool.Quarantine(slice.id, lease.session);
    } else if (pool.Return(slice.id, now)) {
      Linger(slice.id, lease.pool, holder.job, LingeringState::Origin::kFreed);
    } else {
      refund += slice.size;
    }
  }
  // A failing lease was also charged for the extents that could not be made.
  if (lease.state == LeaseState::State::kFailing) {
    refund += lease.size;
    for (const Slice& slice : lease.slices) refund -= slice.size;
  }
  if (hold) holder.quarantined.of(lease.pool.kind) += lease.size;
  if (refund > Bytes(0)) {
    budgets_.Refund(holder.job, lease.pool.kind, refund);
    recharged_.insert(holder.job.principal);
  }
  holder.leases.erase(id);
  const RequestId request = lease.request;
  leases_.erase(id);
  return request;
}

std::optional<Ledger::Decided> Ledger::ExtentMade(ExtentId id,
                                                  const absl::Status& made,
                                                  absl::Time now,
                                                  Effects& effects) {
  const MakingState making = making_.at(id);
  making_.erase(id);
  Pool& pool = pools_.at(making.pool);
  if (made.ok()) {
    ++counts_.made;
    pool.Made(id);
    if (!making.lease) pool.Return(id, now);
  } else {
    pool.Failed(id);
    ForgetPrincipals();  // this may have been the last extent of its principal
  }
  if (!making.lease) return std::nullopt;
  LeaseState& lease = leases_.Edit(*making.lease);
  if (!made.ok()) {
    std::erase_if(lease.slices, [&](const Slice& s) { return s.id == id; });
    if (lease.state == LeaseState::State::kMaking) lease.failure = made;
    lease.state = LeaseState::State::kFailing;
  }
  if (--lease.making > 0) return std::nullopt;
  return Finish(*making.lease, now, effects);
}

std::map<LeaseId, Ledger::Progress> Ledger::Making(
    const std::set<PoolId>& pools, absl::Time then) const {
  std::map<LeaseId, Progress> found;
  for (const auto& [id, making] : making_) {
    if (!making.lease) continue;
    const LeaseState& lease = leases_.at(*making.lease);
    if (lease.asked_at > then) break;  // later extents are of later requests
    if (!pools.contains(making.pool)) continue;
    const Progress none{lease.session, lease.request, lease.size, lease.size};
    Progress& progress = found.try_emplace(*making.lease, none).first->second;
    progress.made -= pools_.at(making.pool).SizeOf(id);
  }
  return found;
}

std::optional<RequestId> Ledger::Free(SessionId session, LeaseId lease,
                                      absl::Time now, Effects& effects) {
  const HolderState* holder = FindOrNull(holders_, session);
  if (holder == nullptr || !holder->leases.contains(lease) ||
      leases_.at(lease).state != LeaseState::State::kGranted) {
    return std::nullopt;
  }
  const RequestId request = End(lease, now);
  AskNow(now, effects);
  return request;
}

// --- Memory that was returned, but that a process may still reach

void Ledger::Linger(ExtentId id, PoolId pool, const JobKey& job,
                    LingeringState::Origin origin) {
  lingering_.Insert(id, {.origin = origin, .pool = pool, .job = job});
  to_ask_.push_back(id);
}

void Ledger::AskNow(absl::Time now, Effects& effects) {
  if (to_ask_.empty()) return;
  // AskAgain will ask about the extents beyond the first kAskAtOnce.
  for (size_t i = kAskAtOnce; i < to_ask_.size(); ++i) {
    lingering_.Edit(to_ask_[i]).answer = LingeringState::Answer::kHeld;
    rest_.ask_again_at = std::min(rest_.ask_again_at, now + kAskEvery);
  }
  to_ask_.resize(std::min(to_ask_.size(), kAskAtOnce));
  effects.push_back(AskHolders{std::exchange(to_ask_, {})});
}

void Ledger::AskAgain(absl::Time now, Effects& effects) {
  if (now < rest_.ask_again_at) return;
  std::vector<ExtentId> held;
  const auto from = lingering_.upper_bound(rest_.asked_last);
  const auto add = [&](auto begin, auto end) {
    for (auto each = begin; each != end && held.size() < kAskAtOnce; ++each) {
      if (each->second.answer != LingeringState::Answer::kHeld) continue;
      held.push_back(each->first);
    }
  };
  add(from, lingering_.end());
  add(lingering_.begin(), from);
  rest_.ask_again_at = held.empty() ? absl::InfiniteFuture() : now + kAskEvery;
  if (held.empty()) return;
  rest_.asked_last = held.back();
  effects.push_back(AskHolders{std::move(held)});
}

Bytes Ledger::HolderKnown(ExtentId id, Held held, absl::Time now) {
  LingeringState* lingering = lingering_.Find(id);
  if (lingering == nullptr) return Bytes(0);
  Pool& pool = pools_.at(lingering->pool);
  if (held == Held::kYes) {
    lingering->answer = LingeringState::Answer::kHeld;
    rest_.ask_again_at = std::min(rest_.ask_again_at, now + kAskEvery);
    return Bytes(0);
  }
  if (held == Held::kUnknown && pool.HasHolders(id)) {
    lingering->answer = LingeringState::Answer::kUnknown;
    return Bytes(0);
  }
  const bool returns = lingering->origin == LingeringState::Origin::kOrphaned &&
                       lingering->pool.kind == PoolKind::kHost;
  const Bytes size = pool.SizeOf(id);
  ChargeLingering({id}, false);
  recharged_.insert(lingering->job.principal);
  pool.Back(id, now);
  lingering_.erase(id);
  return returns ? size : Bytes(0);
}

Bytes Ledger::SetOutside(HeldOutside held) {
  Bytes came_back;
  for (auto& [id, pool] : pools_) {
    const Bytes before = pool.outside();
    // A GPU that cannot be used has no free memory.
    pool.SetOutside(faulty_.contains(id) ? pool.total() : OutsideIn(id, held));
    if (id.kind == PoolKind::kHost && pool.outside() < before) {
      came_back += before - pool.outside();
    }
  }
  rest_.outside = std::move(held);
  return came_back;
}

// Chooses the extents of a lease. If they exceed the budget, chooses again with
// only as much free memory as the budget leaves. This second choice prefers the
// principal's lingering extents, which are charged already.
Ledger::Chosen Ledger::Choose(const HolderState& holder,
                              const LeaseRequest& asked) {
  const JobKey& job = holder.job;
  const Pool& pool = pools_.at(asked.pool);
  const PoolKind kind = asked.pool.kind;
  const Bytes withheld = Withheld(asked.pool, &job.principal);
  // A GPU lease must not exceed the request, since a rank's GPU memory is a
  // hard limit; a host lease may be a little larger.
  const bool exact = kind == PoolKind::kGpu;
  // Lingering memory is charged already, perhaps to another job, so it is
  // refunded before the lease is charged.
  const auto admit = [&](Bytes size, const std::vector<ExtentId>& reused) {
    ChargeLingering(reused, false);
    absl::Status admitted = budgets_.Admit(job, kind, size);
    if (!admitted.ok()) ChargeLingering(reused, true);
    return admitted;
  };
  auto parts =
      pool.Choose(holder.principal, asked.size,
                  exact ? asked.size : budgets_.Left(job, kind), withheld);
  absl::Status admitted =
      admit(asked.size, parts.ok() ? parts->reuse : std::vector<ExtentId>());
  if (admitted.ok()) return {std::move(parts)};
  const Bytes left = std::max(budgets_.Left(job, kind), Bytes(0));
  parts = pool.Choose(holder.principal, asked.size,
                      exact ? asked.size : std::max(asked.size, HostLeft(job)),
                      std::max(withheld, pool.free() - left));
  if (parts.ok() && admit(pool.SizeOf(*parts), parts->reuse).ok()) {
    return {std::move(parts)};
  }
  return {std::move(admitted), RefusedBy::kBudget};
}

void Ledger::ChargeLingering(const std::vector<ExtentId>& extents,
                             bool charged) {
  const auto change = charged ? &Budgets::Charge : &Budgets::Refund;
  for (ExtentId id : extents) {
    const LingeringState* each = FindOrNull(lingering_, id);
    if (each == nullptr) continue;
    (budgets_.*change)(each->job, each->pool.kind,
                       pools_.at(each->pool).SizeOf(id));
  }
}

template <typename Mine>
Bytes Ledger::HostLeft(Bytes of_budget, Mine mine) const {
  if (of_budget >= Limits::kUnlimited) return of_budget;
  for (const auto& [id, each] : lingering_) {
    if (each.pool.kind == PoolKind::kHost && mine(each.job)) {
      of_budget += pools_.at(each.pool).SizeOf(id);
    }
  }
  return of_budget;
}

Bytes Ledger::HostLeft(const Principal& principal) const {
  return HostLeft(
      budgets_.LeftOfPrincipal(principal, PoolKind::kHost),
      [&](const JobKey& job) { return job.principal == principal; });
}

Bytes Ledger::HostLeft(const JobKey& job) const {
  return HostLeft(budgets_.LeftOfJob(job, PoolKind::kHost),
                  [&](const JobKey& each) { return each == job; });
}

// --- The limits of extents and of their changes

size_t Ledger::Extents() const {
  size_t sum = 0;
  for (const auto& [id, pool] : pools_) sum += pool.extents();
  return sum;
}

size_t Ledger::Owned(PrincipalId principal) const {
  size_t sum = 0;
  for (const auto& [id, pool] : pools_) sum += pool.OwnedBy(principal);
  return sum;
}

// Returns how many extents are reserved for attached ranks of principals other
// than `from` and not made yet.
size_t Ledger::HeldBack(PrincipalId from) const {
  size_t sum = 0;
  for (const auto& [principal, known] : principals_) {
    if (known.id == from || known.open == 0) continue;
    const size_t due = limits_.per_rank * static_cast<size_t>(known.open);
    const size_t has = Owned(known.id);
    sum += due - std::min(due, has);
  }
  return std::min(sum, limits_.all);
}

absl::Status Ledger::TooMany(const Principal& who, size_t has,
                             size_t more) const {
  const std::string limit = fmt::format(
      "{} has {} extents, {} more are asked for, and the limit is {}: lease "
      "fewer and larger pieces, free some, or raise ",
      Name(who), has, more, limits_.each);
  if (!limits_.each_of_open_files) {
    return absl::ResourceExhaustedError(limit + "extents in [quota]");
  }
  return ShortOf(Shortage::kOpenFiles,
                 limit + "the open files that sluiced may have (LimitNOFILE)");
}

absl::StatusOr<Ledger::Idle> Ledger::MakeRoom(const HolderState& holder,
                                              PoolId asked,
                                              const Pool::Parts& parts,
                                              absl::Time now) {
  Idle idle;
  if (parts.make.empty()) return idle;
  std::set<ExtentId> spared(parts.reuse.begin(), parts.reuse.end());
  spared.insert(parts.destroy.begin(), parts.destroy.end());
  const Pool& pool = pools_.at(asked);
  const auto own = static_cast<size_t>(std::ranges::count_if(
      parts.destroy,
      [&](ExtentId id) { return pool.OwnerOf(id) == holder.principal; }));
  const size_t made = parts.make.size();
  const size_t owned = Owned(holder.principal) - own + made;
  const size_t all = Extents() - parts.destroy.size() + made;
  const Share share = {static_cast<int64_t>(limits_.each),
                       static_cast<int64_t>(limits_.all)};
  const size_t most =
      std::min(limits_.all - HeldBack(holder.principal),
               static_cast<size_t>(share.all_for(static_cast<int64_t>(owned))));
  const size_t over_own = owned - std::min(owned, limits_.each);
  size_t over_all = all - std::min(all, most);
  const auto take = [&](size_t count, std::optional<PrincipalId> of) {
    const auto from = [&](PoolId id) {
      for (ExtentId each : pools_.at(id).OldestKept(count, spared, of)) {
        idle.emplace_back(id, each);
        spared.insert(each);
        --count;
      }
    };
    from(asked);  // the lease's own pool first: it may need the room
    for (const auto& [id, each] : pools_) {
      if (id != asked && count > 0) from(id);
    }
    return count;
  };
  if (over_own > 0 && take(over_own, holder.principal) > 0) {
    return TooMany(holder.job.principal, owned - made, made);
  }
  over_all -= std::min(over_all, idle.size());
  if (over_all > 0 && take(over_all, std::nullopt) > 0) {
    return ShortOf(
        Shortage::kOpenFiles,
        fmt::format("this node has {} extents, {} more are asked for, and the "
                    "limit of all users together is {}, of which {} are held "
                    "back for attached ranks and users with few: wait until "
                    "some are freed, or "
                    "raise the open files that sluiced may have (LimitNOFILE)",
                    all - made, made, limits_.all, limits_.all - most));
  }
  const auto changes =
      static_cast<double>(made + parts.destroy.size() + idle.size());
  if (!allowances_.Take(holder.job.principal, changes, now)) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} has had too many extents made and destroyed, and the limit is {} "
        "a second: wait a moment, or keep leases instead of freeing them",
        Name(holder.job.principal), allowances_.per_second()));
  }
  return idle;
}

void Ledger::Destroy(const Idle& idle, Effects& effects) {
  for (const auto& [pool, id] : idle) {
    pools_.at(pool).Destroy(id);
    effects.push_back(DestroyExtent{id});
  }
  counts_.destroyed += idle.size();
  if (!idle.empty()) ForgetPrincipals();
}

absl::Duration Ledger::KeptFor(PoolId pool) const {
  return pool.kind == PoolKind::kHost
             ? std::max(limits_.kept_for, limits_.host_kept_for)
             : limits_.kept_for;
}

absl::Duration Ledger::OrphansKeptFor(PoolId pool, const Principal& who) const {
  return pool.kind == PoolKind::kHost && HasHeir(who)
             ? std::max(limits_.orphans_kept_for, limits_.host_kept_for)
             : limits_.orphans_kept_for;
}

void Ledger::Trim(absl::Time now, Effects& effects) {
  Idle idle;
  const auto add = [&](PoolId pool, const std::vector<ExtentId>& extents) {
    for (ExtentId id : extents) idle.emplace_back(pool, id);
  };
  const auto room = [&] { return kTrimAtOnce - idle.size(); };
  for (const auto& [principal, known] : principals_) {
    for (const auto& [id, pool] : pools_) {
      if (known.alone_since + OrphansKeptFor(id, principal) > now) continue;
      add(id, pool.OldestKept(room(), {}, known.id));
    }
  }
  Destroy(std::exchange(idle, {}), effects);
  for (const auto& [id, pool] : pools_) {
    add(id, pool.KeptSince(now - KeptFor(id), room()));
  }
  Destroy(idle, effects);
}

absl::Time Ledger::NextTrim() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, pool] : pools_) {
    next = std::min(next, pool.OldestSince() + KeptFor(id));
    for (const auto& [principal, known] : principals_) {
      const absl::Time due = known.alone_since + OrphansKeptFor(id, principal);
      if (due < next && pool.HasKeptOf(known.id)) next = due;
    }
  }
  return next;
}

Bytes Ledger::IdleHost() const {
  Bytes idle;
  for (const auto& [id, pool] : pools_) {
    if (id.kind == PoolKind::kHost) idle += pool.kept();
  }
  return idle;
}

void Ledger::GiveUpIdleHost(Bytes bytes, Effects& effects) {
  Idle idle;
  for (const auto& [id, pool] : pools_) {
    if (id.kind != PoolKind::kHost) continue;
    for (ExtentId each : pool.OldestKept(kTrimAtOnce, {}, std::nullopt)) {
      if (bytes <= Bytes(0)) break;
      idle.emplace_back(id, each);
      bytes -= pool.SizeOf(each);
    }
  }
  Destroy(idle, effects);
}

// --- Reservations, and the memory that they withhold

Bytes Ledger::Unused(const Reservations& reserved, PoolId pool,
                     const Principal& reserver,
                     const Reservation& reservation) const {
  Bytes unused = reservation.bytes;
  for (auto each = principals_.lower_bound({reserver.uid, ""});
       each != principals_.end() && each->first.uid == reserver.uid; ++each) {
    if (ReserverOf(reserved, pool, each->first) != reserver) continue;
    unused -= pools_.at(pool).ChargedTo(each->second.id);
  }
  return std::max(unused, Bytes(0));
}

Bytes Ledger::Withheld(const Reservations& reserved, PoolId pool,
                       const Principal* from) const {
  const auto* users = FindOrNull(reserved, pool);
  if (users == nullptr) return Bytes(0);
  std::optional<Principal> own;
  if (from != nullptr) own = ReserverOf(reserved, pool, *from);
  Bytes sum;
  for (const auto& [whose, each] : *users) {
    if (whose != own) sum += Unused(reserved, pool, whose, each);
  }
  return sum;
}

absl::Status Ledger::MayReserve(PoolId id, const Principal& whose, Bytes bytes,
                                Bytes promised) const {
  SLUICE_RETURN_IF_ERROR(CheckPool(id));
  if (bytes < Bytes(0) || bytes.count() % granularity_.count() != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "a reservation of {} bytes is not a multiple of the granularity, {}",
        bytes.count(), FormatBytes(granularity_)));
  }
  const Pool& pool = pools_.at(id);
  Reservations tried = reservations_;
  SetReservation(tried, id, whose, {bytes, {}});
  const Bytes withheld = Withheld(tried, id, nullptr);
  // Reserving less needs no free memory.
  if (withheld <= Withheld(reservations_, id, nullptr)) return absl::OkStatus();
  const Bytes room = pool.free() - promised;
  if (withheld <= room) return absl::OkStatus();
  const std::string plans =
      promised > Bytes(0)
          ? fmt::format(", {} of it promised to plans of running jobs",
                        FormatBytes(promised))
          : "";
  return absl::FailedPreconditionError(fmt::format(
      "{}: {} cannot be reserved for {}: with what others have reserved, {} "
      "would have to be free, but only {} of {} are{}; reserve less, or wait "
      "until memory is given back (sluicectl evict ends a job)",
      Name(id), FormatBytes(bytes), Name(whose), FormatBytes(withheld),
      FormatBytes(pool.free()), FormatBytes(pool.total()), plans));
}

absl::Status Ledger::CheckSums(const Reservations& given) const {
  for (const auto& [id, users] : given) {
    Bytes sum;
    for (const auto& [whose, each] : users) sum += each.bytes;
    const Pool* pool = FindPool(id);
    if (pool != nullptr && sum <= pool->total()) continue;
    return absl::InvalidArgumentError(fmt::format(
        "the policy reserves {} of {}, {}: take it out of its file, or give "
        "the pool more in [pools]",
        FormatBytes(sum), Name(id),
        pool != nullptr ? "which has " + FormatBytes(pool->total())
                        : "which is not here"));
  }
  return absl::OkStatus();
}

std::vector<ReservationLine> Ledger::ReservationLines() const {
  std::vector<ReservationLine> lines;
  for (const auto& [pool, users] : reservations_) {
    for (const auto& [whose, each] : users) {
      lines.push_back({pool, whose, each.bytes,
                       Unused(reservations_, pool, whose, each), each.by});
    }
  }
  return lines;
}

// --- What a waiting lease lacks, and whether waiting can help

absl::Status Ledger::MayEverFit(const JobKey& job,
                                const LeaseRequest& asked) const {
  SLUICE_RETURN_IF_ERROR(CheckAsked(asked));
  SLUICE_RETURN_IF_ERROR(budgets_.MayEver(job, asked.pool.kind, asked.size));
  const Pool& pool = pools_.at(asked.pool);
  Bytes others;
  if (const auto* users = FindOrNull(reservations_, asked.pool)) {
    const Principal own = ReserverOf(reservations_, asked.pool, job.principal);
    for (const auto& [whose, each] : *users) {
      if (whose != own) others += each.bytes;
    }
  }
  if (asked.size > pool.total() - others) {
    const std::string reserved =
        others > Bytes(0) ? fmt::format(", of which {} are reserved for others",
                                        FormatBytes(others))
                          : "";
    return ShortOf(ShortageIn(asked.pool.kind),
                   fmt::format("{}: asked {}, but the pool has {}{}, and no "
                               "wait changes that; ask for less, or give the "
                               "pool more in [pools]",
                               Name(asked.pool), FormatBytes(asked.size),
                               FormatBytes(pool.total()), reserved));
  }
  const size_t extents = pool.ExtentsOf(asked.size);
  if (extents > std::min(limits_.each, limits_.all)) {
    return TooMany(job.principal, 0, extents);
  }
  return absl::OkStatus();
}

std::optional<Waiter::Lacks> Ledger::Lacks(const JobKey& job,
                                           const LeaseRequest& asked,
                                           Bytes promised) const {
  const Pool& pool = pools_.at(asked.pool);
  const PoolKind kind = asked.pool.kind;
  const PrincipalId id = FindOr(principals_, job.principal).id;
  const Bytes withheld = Withheld(asked.pool, &job.principal);
  // The principal's own lingering memory is charged already, and can be leased
  // again as it is.
  const Bytes own = pool.MostFor(id, pool.total());
  const Bytes charged_anew = asked.size - own;
  if (charged_anew > budgets_.LeftOfPrincipal(job.principal, kind)) {
    return Waiter::Lacks::kUser;
  }
  if (charged_anew > budgets_.LeftOfJob(job, kind)) return Waiter::Lacks::kJob;
  if (asked.size > pool.MostFor(id, withheld + promised)) {
    return Waiter::Lacks::kPool;
  }
  return std::nullopt;
}

Bytes Ledger::ReservedFor(PoolId pool, const Principal& whose) const {
  const Principal reserver = ReserverOf(reservations_, pool, whose);
  const auto* users = FindOrNull(reservations_, pool);
  const Reservation* own = users ? FindOrNull(*users, reserver) : nullptr;
  return own ? Unused(reservations_, pool, reserver, *own) : Bytes(0);
}

// --- Reading, saving and checking the ledger

Bytes Ledger::UsableBy(PoolId pool, const Principal& principal) const {
  return pools_.at(pool).UsableBy(FindOr(principals_, principal).id,
                                  Withheld(pool, &principal));
}

Bytes Ledger::UsableByAnyone(PoolId pool) const {
  return pools_.at(pool).UsableBy(PrincipalId(), Withheld(pool, nullptr));
}

Bytes Ledger::HostHeld(const JobKey& job, std::optional<uint64_t> numa) const {
  Bytes held;
  for (const auto& [id, lease] : leases_) {
    if (lease.pool.kind == PoolKind::kHost &&
        numa.value_or(lease.pool.ordinal) == lease.pool.ordinal &&
        holders_.at(lease.session).job == job) {
      held += lease.size;
    }
  }
  return held;
}

Bytes Ledger::Leased(SessionId session, PoolKind kind) const {
  Bytes leased;
  for (LeaseId id : LeasesOf(session)) {
    const LeaseState& lease = leases_.at(id);
    if (lease.pool.kind == kind) leased += lease.size;
  }
  return leased;
}

bool Ledger::HoldsNothing(SessionId session) const {
  const HolderState& holder = holders_.at(session);
  return holder.leases.empty() && holder.quarantined == Amounts();
}

bool Ledger::IsReturning(const Principal& principal) const {
  const auto holds = [&](const auto& each) {
    return each.second.job.principal == principal &&
           each.second.quarantined.host > Bytes(0);
  };
  const auto lingers = [&](const auto& each) {
    return each.second.origin == LingeringState::Origin::kOrphaned &&
           each.second.pool.kind == PoolKind::kHost &&
           each.second.job.principal == principal;
  };
  return std::ranges::any_of(holders_.rows(), holds) ||
         std::ranges::any_of(lingering_.rows(), lingers);
}

LedgerState Ledger::Save() const {
  LedgerState saved;
  for (const auto& [id, pool] : pools_) saved.pools[id] = pool.Save();
  saved.budgets = budgets_.Save();
  saved.reservations = reservations_;
  saved.leases = leases_.rows();
  saved.making = making_.rows();
  saved.holders = holders_.rows();
  for (const auto& [principal, known] : principals_) {
    saved.principals[principal] = known;
  }
  saved.lingering = lingering_.rows();
  static_cast<LedgerRest&>(saved) = rest_;
  saved.allowances = allowances_.Save();
  return saved;
}

void Ledger::Load(const LedgerState& saved) {
  SLUICE_CHECK(holders_.empty() && making_.empty() && principals_.empty());
  for (auto& [id, pool] : pools_) pool.Load(saved.pools.at(id));
  budgets_.Load(saved.budgets);
  reservations_ = saved.reservations;
  leases_.Load(saved.leases);
  making_.Load(saved.making);
  holders_.Load(saved.holders);
  for (const auto& [principal, known] : saved.principals) {
    principals_.Insert(principal, {known});
  }
  for (const auto& [id, holder] : holders_) {
    KnownPrincipal& known = principals_.Edit(holder.job.principal);
    ++known.holders;
    if (holder.state == HolderState::State::kOpen) ++known.open;
    for (const PoolKind kind : {PoolKind::kGpu, PoolKind::kHost}) {
      const Bytes owed = holder.quarantined.of(kind);
      if (owed > Bytes(0)) budgets_.Charge(holder.job, kind, owed);
    }
  }
  for (const auto& [id, lease] : leases_) {
    budgets_.Charge(holders_.at(lease.session).job, lease.pool.kind,
                    lease.size);
  }
  lingering_.Load(saved.lingering);
  for (const auto& [id, each] : lingering_) ChargeLingering({id}, true);
  rest_ = saved;
  SetOutside(saved.outside);
  allowances_.Load(saved.allowances);
}

void Ledger::TakeOver(absl::Time now, Effects& effects) {
  for (const auto& [id, making] : making_) {
    const Pool& pool = pools_.at(making.pool);
    effects.push_back(
        MakeExtent{id, making.pool, pool.SizeOf(id), pool.OwnerOf(id)});
  }
  // The earlier daemon's pending answers are lost, so AskAgain asks again.
  for (const auto& [id, each] : lingering_) {
    if (each.answer != LingeringState::Answer::kNotYet) continue;
    lingering_.Edit(id).answer = LingeringState::Answer::kHeld;
    rest_.ask_again_at = now;
  }
}

std::map<SessionId, std::set<RequestId>> Ledger::Asking() const {
  std::map<SessionId, std::set<RequestId>> asking;
  for (const auto& [id, lease] : leases_) {
    if (lease.state == LeaseState::State::kGranted) continue;
    asking[lease.session].insert(lease.request);
  }
  return asking;
}

void Ledger::AddLoose(LooseState& loose) const {
  static_cast<LedgerRest&>(loose) = rest_;
  for (const auto& [id, pool] : pools_) {
    loose.next_idle_order[id] = pool.next_idle_order();
  }
}

void Ledger::CheckInvariants() const {
  for (const auto& [id, pool] : pools_) pool.CheckInvariants();
  budgets_.CheckInvariants();
  CheckLeases();
  CheckHolders();
  CheckCharges();
  SLUICE_CHECK(Extents() <= limits_.all && to_ask_.empty());
  std::map<PoolId, Bytes> lingering;
  for (const auto& [id, each] : lingering_) {
    const Pool& pool = pools_.at(each.pool);
    SLUICE_CHECK(pool.IsLingering(id));
    SLUICE_CHECK(each.answer != LingeringState::Answer::kUnknown ||
                 pool.HasHolders(id));
    lingering[each.pool] += pool.SizeOf(id);
  }
  for (const auto& [id, pool] : pools_) {
    SLUICE_CHECK(lingering[id] == pool.lingering());
  }
  for (const auto& [id, users] : reservations_) {
    SLUICE_CHECK(!users.empty());
    for (const auto& [whose, each] : users) SLUICE_CHECK(each.bytes > Bytes(0));
    // The unused part of a pool's reservations is free, or held outside.
    const Pool& pool = pools_.at(id);
    SLUICE_CHECK(Withheld(id, nullptr) <= pool.total() - pool.leased() -
                                              pool.quarantined() -
                                              pool.lingering());
  }
}

// Checks that pools count as leased exactly the extents of leases, and the
// extents that are still being made for ended leases.
void Ledger::CheckLeases() const {
  std::map<PoolId, Bytes> by_pool;
  int making = 0;
  for (const auto& [id, lease] : leases_) {
    Bytes sum;
    for (const Slice& slice : lease.slices) sum += slice.size;
    const bool failing = lease.state == LeaseState::State::kFailing;
    SLUICE_CHECK(failing ? sum < lease.size : sum == lease.size);
    SLUICE_CHECK(failing == !lease.failure.ok());
    SLUICE_CHECK((lease.making == 0) ==
                 (lease.state == LeaseState::State::kGranted));
    SLUICE_CHECK(holders_.at(lease.session).leases.contains(id));
    by_pool[lease.pool] += sum;
    making += lease.making;
  }
  int orphans = 0;
  for (const auto& [extent, wanted] : making_) {
    SLUICE_CHECK(!wanted.lease || leases_.contains(*wanted.lease));
    if (!wanted.lease) ++orphans;
  }
  SLUICE_CHECK(making + orphans == static_cast<int>(making_.size()));
  for (const auto& [id, pool] : pools_) {
    SLUICE_CHECK(orphans > 0 ? pool.leased() >= by_pool[id]
                             : pool.leased() == by_pool[id]);
  }
}

// Checks that each lease belongs to one holder, that closed holders have no
// leases and open ones nothing in quarantine, and the counts of principals.
void Ledger::CheckHolders() const {
  size_t leases = 0;
  std::map<Principal, int> holders, open;
  for (const auto& [id, holder] : holders_) {
    leases += holder.leases.size();
    const bool is_open = holder.state == HolderState::State::kOpen;
    SLUICE_CHECK(is_open ? holder.quarantined == Amounts()
                         : holder.leases.empty());
    ++holders[holder.job.principal];
    open[holder.job.principal] += is_open;
  }
  SLUICE_CHECK(leases == leases_.size());
  for (const auto& [principal, known] : principals_) {
    SLUICE_CHECK(known.holders == holders[principal]);
    SLUICE_CHECK(known.open == open[principal]);
    SLUICE_CHECK((known.holders == 0) ==
                 (known.alone_since < absl::InfiniteFuture()));
    const size_t owned = Owned(known.id);
    SLUICE_CHECK(owned <= limits_.each && (known.holders > 0 || owned > 0));
  }
}

// Checks that holders are charged for what pools quarantine, and budgets for
// what is leased, lingers or is quarantined.
void Ledger::CheckCharges() const {
  Amounts expected, quarantined, owed, charged;
  for (const auto& [id, lease] : leases_) {
    expected.of(lease.pool.kind) += lease.size;
  }
  for (const auto& [id, pool] : pools_) {
    quarantined.of(id.kind) += pool.quarantined();
    expected.of(id.kind) += pool.quarantined() + pool.lingering();
  }
  for (const auto& [id, holder] : holders_) owed += holder.quarantined;
  for (const BudgetLine& line : budgets_.Lines()) {
    if (line.job.empty()) charged += {line.gpu_used, line.host_used};
  }
  SLUICE_CHECK(owed == quarantined && charged == expected);
}

}  // namespace sluice::daemon
