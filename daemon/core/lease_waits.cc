#include "daemon/core/lease_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

// Retry interval of leases that wait until the principal may make more extents.
constexpr absl::Duration kTryEvery = absl::Milliseconds(250);

std::string Text(absl::Duration time) {
  return FormatSpan(absl::Trunc(time, absl::Milliseconds(100)));
}

}  // namespace

void LeaseWaits::Ask(const Session& session, RequestId request,
                     const LeaseRequest& asked, absl::Time now,
                     Effects& effects) {
  Waiter lease{.session = session.id,
               .request = request,
               .asked = asked,
               .job = session.job(),
               .since = now};
  // A lease never waits for the memory of another NUMA node.
  if (absl::Status far = CheckBorrowing(session, asked); !far.ok()) {
    return leases_.Refuse(lease, {std::move(far), RefusedBy::kPool}, now,
                          effects);
  }
  Refusal refusal = StaysBehind(lease, now);
  if (refusal.why.ok()) refusal = leases_.Take(lease, now, effects);
  if (refusal.why.ok()) return;
  if (absl::IsResourceExhausted(refusal.why) &&
      (refusal.by == RefusedBy::kPool || refusal.by == RefusedBy::kBudget) &&
      joint_.AwaitRoom(session.id, asked, now)) {
    const absl::Duration most = std::min(config_.join_wait, config_.lease_wait);
    lease.deadline =
        now +
        (asked.wait > absl::ZeroDuration() ? std::min(most, asked.wait) : most);
    lease.for_plan = true;
    return line_.Join(std::move(lease));
  }
  WaitOrRefuse(std::move(lease), refusal, now, effects);
}

Bytes LeaseWaits::Borrowable(const Session& rank, PoolId pool) const {
  int attached = 0;
  for (const auto& [id, other] : sessions_) {
    if (!other.is_rank()) continue;
    const GpuConfig& gpu = config_.gpus[other.hello.gpu.value()];
    if (other.job() != rank.job() || gpu.numa.value() == pool.ordinal) {
      return Bytes(0);
    }
    ++attached;
  }
  if (attached < rank.hello.local_ranks) return Bytes(0);
  return std::max(ledger_.UsableBy(pool, rank.peer.principal) -
                      ledger_.pools().at(pool).total() / 2,
                  Bytes(0));
}

absl::Status LeaseWaits::CheckBorrowing(const Session& session,
                                        const LeaseRequest& asked) const {
  if (!session.is_rank() || asked.pool.kind != PoolKind::kHost ||
      ledger_.FindPool(asked.pool) == nullptr) {
    return absl::OkStatus();
  }
  const NumaIndex own = config_.gpus[session.hello.gpu.value()].numa;
  if (asked.pool.ordinal == own.value()) return absl::OkStatus();
  const Bytes most = Borrowable(session, asked.pool);
  if (asked.size <= most) return absl::OkStatus();
  return ShortOf(
      Shortage::kHostMemory,
      fmt::format("{}: asked {}, and a rank on NUMA node {} may lease {} there "
                  "now: a job alone on the machine has half of each node "
                  "without ranks",
                  Name(asked.pool), FormatBytes(asked.size), own.value(),
                  FormatBytes(most)));
}

Rights LeaseWaits::RightsOf(const Waiter& lease) const {
  const auto& [pool, size, wait] = lease.asked;
  return {.reserved = size <= ledger_.ReservedFor(pool, lease.job.principal),
          .promised = size <= joint_.DueOf(pool, lease.job)};
}

Refusal LeaseWaits::StaysBehind(const Waiter& lease, absl::Time now) const {
  if (line_.empty() || policy_.drain() ||
      !sessions_.at(lease.session).is_rank() ||
      line_.Before(lease, {}, now).first == nullptr) {
    return {};
  }
  if (absl::Status never = ledger_.MayEverFit(lease.job, lease.asked);
      !never.ok()) {
    return {std::move(never), RefusedBy::kBudget};
  }
  const auto front = line_.Before(lease, RightsOf(lease), now);
  if (front.first == nullptr) return {};
  return {ShortOf(ShortageIn(lease.asked.pool.kind),
                  WhyItWaits(lease, front, now) +
                      "; ask with a wait (sluice-train --wait, lease_wait_s of "
                      "a Session) to stand in line behind it, or ask again "
                      "later"),
          RefusedBy::kQueue};
}

void LeaseWaits::WaitOrRefuse(Waiter lease, const Refusal& refusal,
                              absl::Time now, Effects& effects) {
  const auto refuse = [&](const Refusal& last) {
    leases_.Refuse(lease, last, now, effects);
  };
  const LeaseRequest& asked = lease.asked;
  const Session& session = sessions_.at(lease.session);
  lease.deadline = lease.since + asked.wait;
  // If the ledger refuses for another reason, waiting cannot help.
  if (asked.wait <= absl::ZeroDuration() || lease.deadline <= now ||
      !session.is_rank() || !absl::IsResourceExhausted(refusal.why)) {
    return refuse(refusal);
  }
  if (absl::Status never = ledger_.MayEverFit(lease.job, asked); !never.ok()) {
    return refuse({std::move(never), refusal.by});
  }
  if (asked.wait > config_.wait_limits.longest) {
    return refuse(
        {absl::InvalidArgumentError(fmt::format(
             "a wait of {} for a lease, and the longest is {}: wait less, or "
             "raise longest_wait_s in [quota]",
             Text(asked.wait), Text(config_.wait_limits.longest))),
         RefusedBy::kQueue});
  }
  absl::Status may = line_.MayJoin(lease.job.principal, config_.wait_limits);
  if (!may.ok()) {
    ++journal_.stats.waits_refused;
    return refuse({std::move(may), RefusedBy::kQueue});
  }
  journal_.Log(now, EventKind::kWait,
               fmt::format("{} waits up to {} for {} of {}, {} in front",
                           session.Label(), Text(asked.wait),
                           FormatBytes(asked.size), Name(asked.pool),
                           line_.Before(lease, RightsOf(lease), now).count),
               session.peer.principal, {session.id, lease.request});
  lease.for_plan = false;
  lease.again = absl::InfinitePast();
  line_.Join(std::move(lease));
}

WaitingQueue::Turn LeaseWaits::TakeTurn(const Waiter& waiter, absl::Time now,
                                        Effects& effects) {
  using Result = WaitingQueue::Turn::Result;
  if (policy_.drain()) return {Result::kStays, waiter.lacks};
  const JobKey& job = waiter.job;
  const LeaseRequest& asked = waiter.asked;
  const auto refuse = [&](const Refusal& refusal) -> WaitingQueue::Turn {
    leases_.Refuse(waiter, refusal, now, effects);
    ++journal_.stats.waits[WaitEnd::kRefused];
    return {Result::kRefused};
  };
  if (absl::Status never = ledger_.MayEverFit(job, asked); !never.ok()) {
    return refuse({std::move(never), RefusedBy::kQueue});
  }
  const auto lacks =
      ledger_.Lacks(job, asked, joint_.PromisedToOthers(asked.pool, job));
  if (lacks) return {Result::kStays, *lacks};
  const Refusal refusal = leases_.Take(waiter, now, effects);
  if (refusal.why.ok()) {
    ++journal_.stats.waits[WaitEnd::kGranted];
    journal_.Log(now, EventKind::kWait,
                 fmt::format("{}: its turn for {} of {} after {}",
                             sessions_.at(waiter.session).Label(),
                             FormatBytes(asked.size), Name(asked.pool),
                             Text(now - waiter.since)),
                 job.principal, {waiter.session, waiter.request});
    return {Result::kGranted};
  }
  if (!absl::IsResourceExhausted(refusal.why)) return refuse(refusal);
  switch (refusal.by) {
    case RefusedBy::kPool:  // memory is free, but not in usable sizes
      return {Result::kStays, Waiter::Lacks::kPool};
    case RefusedBy::kBudget: {
      const bool users = asked.size > ledger_.budgets().LeftOfPrincipal(
                                          job.principal, asked.pool.kind);
      return {Result::kStays,
              users ? Waiter::Lacks::kUser : Waiter::Lacks::kJob};
    }
    default:  // kExtents: the allowance grows every second
      return {Result::kStays, Waiter::Lacks::kUser, now + kTryEvery};
  }
}

std::string LeaseWaits::WhyItWaits(const Waiter& lease,
                                   const WaitingQueue::InFront& front,
                                   absl::Time now) const {
  const JobKey& job = lease.job;
  const LeaseRequest& asked = lease.asked;
  const Pool& at = *ledger_.FindPool(asked.pool);
  std::string text = fmt::format(
      "{}: asked {}, free {} of {}", Name(asked.pool), FormatBytes(asked.size),
      FormatBytes(at.free()), FormatBytes(at.total()));
  const auto part = [&](Bytes bytes, const char* what) {
    if (bytes > Bytes(0)) {
      text += fmt::format(", of which {} are {}",
                          FormatBytes(std::min(bytes, at.free())), what);
    }
  };
  part(ledger_.Withheld(asked.pool, &job.principal), "reserved for others");
  part(joint_.PromisedToOthers(asked.pool, job),
       "promised to plans of other jobs");
  if (front.first != nullptr) {
    const Waiter& first = *front.first;
    text += fmt::format(", but {} is in front: it has waited {} for {} of {}",
                        first.job.principal == job.principal
                            ? "job " + first.job.name
                            : "another user's job",
                        Text(now - first.since), FormatBytes(first.asked.size),
                        Name(first.asked.pool));
    if (front.count > 1) text += fmt::format(" ({} wait there)", front.count);
    return text;
  }
  if (lease.lacks == Waiter::Lacks::kPool) return text;
  const absl::Status budget =
      ledger_.budgets().Admit(job, asked.pool.kind, asked.size);
  return text + ", but " +
         (budget.ok() ? "its user has had as many extents as may be for now"
                      : std::string(budget.message()));
}

Woken LeaseWaits::TakeWoken() {
  Woken woken{.pools = {},
              .users = ledger_.TakeRecharged(),
              .all = line_.TakeWakeAll()};
  for (const auto& [id, pool] : ledger_.pools()) {
    uint64_t changes = pool.changes();
    // A change of the host memory promised to plans counts as a change of the
    // pool.
    if (id.kind == PoolKind::kHost) changes += joint_.demands_version();
    if (std::exchange(changes_seen_[id], changes) == changes) continue;
    woken.pools.insert(id);
  }
  return woken;
}

void LeaseWaits::ReleaseForPlans(const Woken& woken, absl::Time now,
                                 Effects& effects) {
  bool in_vain = false;
  const std::set<PlaceInLine> places = line_.for_plans();
  for (const PlaceInLine& place : places) {
    const Waiter waiter = line_.waiters().at(place);
    const bool coming = joint_.MakesRoom(waiter.job);
    const bool over = !coming || waiter.deadline <= now;
    if (!over && (waiter.again > now || !woken.Wakes(waiter, now))) continue;
    const Refusal refusal = leases_.Take(waiter, now, effects);
    if (!refusal.why.ok() && !over) {
      const absl::Time again = refusal.by == RefusedBy::kExtents
                                   ? now + kTryEvery
                                   : absl::InfinitePast();
      if (again != waiter.again) line_.TryAgainAt(place, again);
      continue;
    }
    line_.Leave(waiter.session, waiter.request);
    if (refusal.why.ok()) continue;
    in_vain |= coming;
    WaitOrRefuse(waiter, refusal, now, effects);
  }
  if (in_vain) joint_.MarkShrinkersLate();
}

void LeaseWaits::Release(absl::Time now, Effects& effects) {
  const Woken woken = TakeWoken();
  if (line_.empty()) return;
  ReleaseForPlans(woken, now, effects);
  line_.Release(
      now, woken, [&](const Waiter& waiter) { return RightsOf(waiter); },
      [&](const Waiter& waiter) { return TakeTurn(waiter, now, effects); },
      [&](const PlaceInLine& place, const Waiter& waiter) {
        TimeOut(place, waiter, now, effects);
      });
}

void LeaseWaits::TimeOut(const PlaceInLine& place, const Waiter& waiter,
                         absl::Time now, Effects& effects) {
  const absl::Status drained = policy_.CheckDrain();
  const std::string why =
      drained.ok()
          ? WhyItWaits(waiter, line_.Before(place, RightsOf(waiter), now),
                       now) +
                "; wait longer, ask for less, or see who holds it (sluicectl "
                "status)"
          : std::string(drained.message());
  ++journal_.stats.waits[WaitEnd::kTimedOut];
  leases_.Refuse(
      waiter,
      {Mark(absl::DeadlineExceededError(fmt::format(
                "waited {} in vain: {}", Text(now - waiter.since), why)),
            ShortageIn(waiter.asked.pool.kind)),
       RefusedBy::kQueue},
      now, effects);
}

void LeaseWaits::GiveUp(Session& session, RequestId request,
                        const GiveUpRequest& given_up, absl::Time now,
                        Effects& effects) {
  // A lease that does not wait has its answer, or soon gets it.
  if (const auto left = line_.Leave(session.id, given_up.request)) {
    ++journal_.stats.waits[WaitEnd::kGaveUp];
    const std::string text = fmt::format(
        "gave up waiting for {} of {} after {}", FormatBytes(left->asked.size),
        Name(left->asked.pool), Text(now - left->since));
    journal_.Log(now, EventKind::kWait,
                 fmt::format("{} {}", session.Label(), text),
                 session.peer.principal, {session.id, given_up.request});
    session.Answer(given_up.request, absl::CancelledError(text), effects);
  }
  session.Answer(request, NotedReply{}, effects);
}

std::vector<WaitingSnapshot> LeaseWaits::Waiting(const Principal* viewer,
                                                 absl::Time now) const {
  std::vector<WaitingSnapshot> list;
  std::map<PoolId, int> at_pool;
  std::map<std::pair<Principal, PoolKind>, int> of_user;
  for (const auto& [place, waiter] : line_.waiters()) {
    if (waiter.for_plan) continue;  // JointPlanning::Planning lists it
    const PoolId pool = waiter.asked.pool;
    const Principal& who = waiter.job.principal;
    int& before = waiter.lacks == Waiter::Lacks::kPool
                      ? at_pool[pool]
                      : of_user[{who, pool.kind}];
    const int in_front = before++;
    if (viewer && who != *viewer) continue;
    list.push_back({.job = waiter.job,
                    .rank = sessions_.at(waiter.session).hello.rank,
                    .pool = pool,
                    .size = waiter.asked.size,
                    .lacks = waiter.lacks,
                    .in_front = in_front,
                    .elapsed = now - waiter.since,
                    .left = waiter.deadline - now});
  }
  return list;
}

void LeaseWaits::CheckInvariants() const {
  line_.CheckInvariants(config_.wait_limits);
  for (const auto& [place, waiter] : line_.waiters()) {
    const Session& session = sessions_.at(waiter.session);
    SLUICE_CHECK(session.is_rank() && session.job() == waiter.job);
  }
}

}  // namespace sluice::daemon
