#include "daemon/core/leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

// Retry interval of leases that wait until the principal may make more extents.
constexpr absl::Duration kTryEvery = absl::Milliseconds(250);
// Leases that take longer than this get progress notices.
constexpr absl::Duration kTellProgressAfter = absl::Milliseconds(200);

std::string Text(absl::Duration time) {
  return FormatSpan(absl::Trunc(time, absl::Milliseconds(100)));
}

// Returns "1 GiB of GPU 0".
std::string Text(const LeaseRequest& asked) {
  return fmt::format("{} of {}", FormatBytes(asked.size), Name(asked.pool));
}

}  // namespace

// --- leases, as the ledger decides

Refusal Leases::Take(const Waiter& lease, absl::Time now, Effects& effects) {
  if (absl::Status drained = policy_.CheckDrain(); !drained.ok()) {
    return {std::move(drained), RefusedBy::kDrain};
  }
  const Ledger::Asked answer =
      ledger_.Lease(lease.session, lease.request, lease.asked, now, effects);
  if (answer.decided) Decide(*answer.decided, now, effects);
  return answer.refusal;
}

void Leases::Refuse(const Waiter& lease, const Refusal& refusal, absl::Time now,
                    Effects& effects) {
  Session& session = sessions_.Edit(lease.session);
  ++journal_.stats.leases_refused[refusal.by];
  journal_.LogOf(session, now, EventKind::kRefuse,
                 fmt::format("{}: {}", session.Label(),
                             std::string(refusal.why.message())),
                 lease.request);
  session.Answer(lease.request, refusal.why, effects);
}

void Leases::Decide(const Ledger::Decided& decided, absl::Time now,
                    Effects& effects) {
  const auto& [id, lease] = decided;
  Session& session = sessions_.Edit(lease.session);
  TellHolding(session, effects);
  if (!lease.failure.ok()) {
    const absl::Status why = Annotate(
        lease.failure, fmt::format("{}: {} could not be made", Name(lease.pool),
                                   FormatBytes(lease.size)));
    LogFailure(session, lease.request, why, now);
    return session.Answer(lease.request, why, effects);
  }
  ++journal_.stats.leases_granted;
  journal_.stats.lease_seconds.Observe(
      absl::ToDoubleSeconds(now - lease.asked_at));
  journal_.LogOf(session, now, EventKind::kLease,
                 fmt::format("{}: {} in {} extents (lease {})", session.Label(),
                             Text({lease.pool, lease.size}),
                             lease.slices.size(), id.value()),
                 lease.request);
  session.Answer(lease.request, GrantedReply{id, lease.slices}, effects);
}

void Leases::TellHolding(const Session& session, Effects& effects) const {
  if (!session.is_rank()) return;  // its former slot may be another rank's now
  effects.push_back(
      HoldsMemory{session.grant_slot, ledger_.HasLease(session.id)});
}

void Leases::ExtentsMade(const std::vector<ExtentOutcome>& outcomes,
                         absl::Time now, Effects& effects) {
  std::set<PoolId> pools;
  for (const auto& [extent, made] : outcomes) {
    pools.insert(ledger_.PoolOfMaking(extent));
    const auto decided = ledger_.ExtentMade(extent, made, now, effects);
    if (decided) Decide(*decided, now, effects);
  }
  // A lease gets a notice too if only extents in front of its own, in the
  // device's queue, were made.
  for (const auto& [lease, each] :
       ledger_.Making(pools, now - kTellProgressAfter)) {
    effects.push_back(SendNotice{
        each.session, LeaseProgressNotice{each.request, each.made, each.size}});
  }
}

void Leases::NotSent(SessionId id, LeaseId lease, const absl::Status& why,
                     absl::Time now, Effects& effects) {
  const auto request = ledger_.Free(id, lease, now, effects);
  if (!request) return;  // its session has ended
  Session& session = sessions_.Edit(id);
  TellHolding(session, effects);
  const absl::Status refused =
      Annotate(why, "the memory is there, but its descriptors were not sent");
  LogFailure(session, *request, refused, now);
  session.history.TakeBack(*request, refused);
  effects.push_back(SendReply{id, *request, refused});
}

void Leases::Free(Session& session, RequestId request, const FreeRequest& asked,
                  absl::Time now, Effects& effects) {
  const auto ended = ledger_.Free(session.id, asked.lease, now, effects);
  if (!ended) {
    return session.Answer(
        request,
        absl::NotFoundError(
            fmt::format("no lease {} in this session", asked.lease.value())),
        effects);
  }
  session.history.LeaseEnded(*ended);
  TellHolding(session, effects);
  session.Answer(request, FreedReply{}, effects);
}

Reply Leases::Repeat(const Session& session, RequestId request) const {
  const Reply& reply = session.history.answer(request);
  const auto* granted = std::get_if<GrantedReply>(&reply);
  if (granted == nullptr ||
      ledger_.LeasesOf(session.id).contains(granted->lease)) {
    return reply;
  }
  return absl::NotFoundError(
      fmt::format("request {} was granted as lease {}, which was freed since",
                  request.value(), granted->lease.value()));
}

void Leases::NameHeldOfFaulty(absl::Time now) {
  for (const GpuConfig& gpu : config_.gpus) {
    const PoolId id{PoolKind::kGpu, gpu.index.value()};
    const Pool& pool = *ledger_.FindPool(id);
    const Bytes bytes = pool.total() - pool.outside();
    if (gpu.fault.empty() || bytes == Bytes(0)) continue;
    std::string by;
    for (const auto& [holder, session] : sessions_) {
      if (!session.was_rank() || session.gpu() != id) continue;
      by += (by.empty() ? "" : ", ") + session.Described();
    }
    journal_.Log(now, EventKind::kStart,
                 fmt::format("{} are held by {}, until these processes end",
                             Text({id, bytes}), by),
                 {config_.own_uid, ""});
  }
}

// --- requests, and leases that wait

void Leases::Ask(const Session& session, RequestId request,
                 const LeaseRequest& asked, absl::Time now, Effects& effects) {
  Waiter lease{.session = session.id,
               .request = request,
               .asked = asked,
               .job = session.job(),
               .since = now};
  Refusal refusal;
  if (!session.is_rank()) {
    refusal.why = absl::FailedPreconditionError(
        "an observer's session has no leases: attach as a rank");
    return Refuse(lease, refusal, now, effects);
  }
  // A lease never waits for the memory of another NUMA node.
  refusal = {CheckBorrowing(session, asked), RefusedBy::kPool};
  if (!refusal.why.ok()) return Refuse(lease, refusal, now, effects);
  refusal = StaysBehind(lease, now);
  if (refusal.why.ok()) refusal = Take(lease, now, effects);
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

Bytes Leases::Borrowable(const Session& rank, PoolId pool) const {
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

absl::Status Leases::CheckBorrowing(const Session& session,
                                    const LeaseRequest& asked) const {
  if (asked.pool.kind != PoolKind::kHost ||
      ledger_.FindPool(asked.pool) == nullptr) {
    return absl::OkStatus();
  }
  const uint64_t own = config_.gpus[session.hello.gpu.value()].numa.value();
  if (asked.pool.ordinal == own) return absl::OkStatus();
  const Bytes most = Borrowable(session, asked.pool);
  if (asked.size <= most) return absl::OkStatus();
  return ShortOf(
      Shortage::kHostMemory,
      fmt::format("{}: asked {}, and a rank on NUMA node {} may lease {} there "
                  "now: a job alone on the machine has half of each node "
                  "without ranks",
                  Name(asked.pool), FormatBytes(asked.size), own,
                  FormatBytes(most)));
}

Refusal Leases::StaysBehind(const Waiter& lease, absl::Time now) const {
  if (line_.empty() || policy_.drain() ||
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

void Leases::WaitOrRefuse(Waiter lease, const Refusal& refusal, absl::Time now,
                          Effects& effects) {
  const auto refuse = [&](absl::Status why, RefusedBy by) {
    Refuse(lease, {std::move(why), by}, now, effects);
  };
  const LeaseRequest& asked = lease.asked;
  const Session& session = sessions_.at(lease.session);
  lease.deadline = lease.since + asked.wait;
  // Waiting helps only if something was exhausted.
  if (asked.wait <= absl::ZeroDuration() || lease.deadline <= now ||
      !absl::IsResourceExhausted(refusal.why)) {
    return Refuse(lease, refusal, now, effects);
  }
  if (absl::Status never = ledger_.MayEverFit(lease.job, asked); !never.ok()) {
    return refuse(std::move(never), refusal.by);
  }
  if (asked.wait > config_.wait_limits.longest) {
    return refuse(
        absl::InvalidArgumentError(fmt::format(
            "asked to wait {} for a lease, but the longest is {}: wait less, "
            "or raise longest_wait_s in [quota]",
            Text(asked.wait), Text(config_.wait_limits.longest))),
        RefusedBy::kQueue);
  }
  absl::Status may = line_.MayJoin(lease.job.principal, config_.wait_limits);
  if (!may.ok()) {
    ++journal_.stats.waits_refused;
    return refuse(std::move(may), RefusedBy::kQueue);
  }
  journal_.LogOf(session, now, EventKind::kWait,
                 fmt::format("{} waits up to {} for {}, {} in front",
                             session.Label(), Text(asked.wait), Text(asked),
                             line_.Before(lease, RightsOf(lease), now).count),
                 lease.request);
  lease.for_plan = false;
  lease.again = absl::InfinitePast();
  line_.Join(std::move(lease));
}

WaitingQueue::Turn Leases::TakeTurn(const Waiter& waiter, absl::Time now,
                                    Effects& effects) {
  using Stay = WaitingQueue::Stay;
  if (policy_.drain()) return Stay{waiter.lacks};
  const JobKey& job = waiter.job;
  const LeaseRequest& asked = waiter.asked;
  const auto refuse = [&](const Refusal& refusal) -> WaitingQueue::Turn {
    Refuse(waiter, refusal, now, effects);
    ++journal_.stats.waits[WaitEnd::kRefused];
    return std::nullopt;
  };
  if (absl::Status never = ledger_.MayEverFit(job, asked); !never.ok()) {
    return refuse({std::move(never), RefusedBy::kQueue});
  }
  if (const auto lacks =
          ledger_.Lacks(job, asked, joint_.PromisedToOthers(asked.pool, job))) {
    return Stay{*lacks};
  }
  const Refusal refusal = Take(waiter, now, effects);
  if (refusal.why.ok()) {
    ++journal_.stats.waits[WaitEnd::kGranted];
    const Session& session = sessions_.at(waiter.session);
    journal_.LogOf(session, now, EventKind::kWait,
                   fmt::format("{}: its turn for {} after {}", session.Label(),
                               Text(asked), Text(now - waiter.since)),
                   waiter.request);
    return std::nullopt;
  }
  if (!absl::IsResourceExhausted(refusal.why)) return refuse(refusal);
  switch (refusal.by) {
    case RefusedBy::kPool:  // memory is free, but not in usable sizes
      return Stay{Waiter::Lacks::kPool};
    case RefusedBy::kBudget: {
      const bool users = asked.size > ledger_.budgets().LeftOfPrincipal(
                                          job.principal, asked.pool.kind);
      return Stay{users ? Waiter::Lacks::kUser : Waiter::Lacks::kJob};
    }
    default:  // kExtents: the allowance grows every second
      return Stay{Waiter::Lacks::kUser, now + kTryEvery};
  }
}

std::string Leases::WhyItWaits(const Waiter& lease,
                               const WaitingQueue::InFront& front,
                               absl::Time now) const {
  const auto& [pool, size, wait] = lease.asked;
  const Pool& at = *ledger_.FindPool(pool);
  std::string text =
      fmt::format("{}: asked {}, free {} of {}", Name(pool), FormatBytes(size),
                  FormatBytes(at.free()), FormatBytes(at.total()));
  const auto part = [&](Bytes bytes, const char* what) {
    if (bytes > Bytes(0)) {
      text += fmt::format(", of which {} are {}",
                          FormatBytes(std::min(bytes, at.free())), what);
    }
  };
  part(ledger_.Withheld(pool, &lease.job.principal), "reserved for others");
  part(joint_.PromisedToOthers(pool, lease.job),
       "promised to plans of other jobs");
  if (front.first != nullptr) {
    const Waiter& first = *front.first;
    text += fmt::format(", but {} is in front: it has waited {} for {}",
                        first.job.principal == lease.job.principal
                            ? "job " + first.job.name
                            : "another user's job",
                        Text(now - first.since), Text(first.asked));
    if (front.count > 1) text += fmt::format(" ({} wait there)", front.count);
    return text;
  }
  if (lease.lacks == Waiter::Lacks::kPool) return text;
  const absl::Status budget =
      ledger_.budgets().Admit(lease.job, pool.kind, size);
  return text + ", but " +
         (budget.ok() ? "its user cannot have more extents made for now"
                      : std::string(budget.message()));
}

void Leases::ReleaseForPlans(const Woken& woken, absl::Time now,
                             Effects& effects) {
  bool in_vain = false;
  const std::set<PlaceInLine> places = line_.for_plans();
  for (const PlaceInLine& place : places) {
    const Waiter waiter = line_.waiters().at(place);
    const bool coming = joint_.MakesRoom(waiter.job);
    const bool over = !coming || waiter.deadline <= now;
    if (!over && (waiter.again > now || !woken.Wakes(waiter, now))) continue;
    const Refusal refusal = Take(waiter, now, effects);
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

void Leases::Release(absl::Time now, Effects& effects) {
  Woken woken{.pools = {},
              .users = ledger_.TakeRecharged(),
              .all = line_.TakeWakeAll()};
  for (const auto& [id, pool] : ledger_.pools()) {
    uint64_t changes = pool.changes();
    // A change of what is promised to plans counts as a change of the pool.
    if (id.kind == PoolKind::kHost) changes += joint_.demands_version();
    if (std::exchange(changes_seen_[id], changes) == changes) continue;
    woken.pools.insert(id);
  }
  if (line_.empty()) return;
  ReleaseForPlans(woken, now, effects);
  line_.Release(
      now, woken, [&](const Waiter& waiter) { return RightsOf(waiter); },
      [&](const Waiter& waiter) { return TakeTurn(waiter, now, effects); },
      [&](const PlaceInLine& place, const Waiter& waiter) {
        TimeOut(place, waiter, now, effects);
      });
}

void Leases::TimeOut(const PlaceInLine& place, const Waiter& waiter,
                     absl::Time now, Effects& effects) {
  const absl::Status drained = policy_.CheckDrain();
  const std::string why =
      drained.ok()
          ? WhyItWaits(waiter,
                       line_.Before(waiter, RightsOf(waiter), now, &place),
                       now) +
                "; wait longer, ask for less, or see who holds it (sluicectl "
                "status)"
          : std::string(drained.message());
  ++journal_.stats.waits[WaitEnd::kTimedOut];
  Refuse(waiter,
         {Mark(absl::DeadlineExceededError(fmt::format(
                   "waited {} in vain: {}", Text(now - waiter.since), why)),
               ShortageIn(waiter.asked.pool.kind)),
          RefusedBy::kQueue},
         now, effects);
}

void Leases::GiveUp(Session& session, RequestId request,
                    const GiveUpRequest& given_up, absl::Time now,
                    Effects& effects) {
  // A lease that does not wait has its answer, or soon gets it.
  if (const auto left = line_.Leave(session.id, given_up.request)) {
    ++journal_.stats.waits[WaitEnd::kGaveUp];
    const std::string text =
        fmt::format("gave up waiting for {} after {}", Text(left->asked),
                    Text(now - left->since));
    journal_.LogOf(session, now, EventKind::kWait, session.Label() + " " + text,
                   given_up.request);
    session.Answer(given_up.request, absl::CancelledError(text), effects);
  }
  session.Answer(request, NotedReply{}, effects);
}

std::vector<WaitingSnapshot> Leases::Waiting(const Principal* viewer,
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
    list.push_back({waiter, sessions_.at(waiter.session).hello.rank, in_front,
                    now - waiter.since, waiter.deadline - now});
  }
  return list;
}

void Leases::CheckInvariants() const {
  line_.CheckInvariants(config_.wait_limits);
  for (const auto& [place, waiter] : line_.waiters()) {
    const Session& session = sessions_.at(waiter.session);
    SLUICE_CHECK(session.is_rank() && session.job() == waiter.job);
  }
}

}  // namespace sluice::daemon
