// Leases: what the ledger decides, answered; what waits, tried again.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Most leases are there by then.
constexpr absl::Duration kTellProgressAfter = absl::Milliseconds(200);

}  // namespace

void Core::Handle(Session& session, RequestId request,
                  const LeaseRequest& asked, absl::Time now, Effects& effects) {
  Refusal refusal = StaysBehind(session, asked, now);
  if (refusal.why.ok()) {
    refusal = TakeLease(session, request, asked, now, effects);
  }
  if (refusal.why.ok()) return;
  if (absl::IsResourceExhausted(refusal.why) &&
      (refusal.by == RefusedBy::kPool || refusal.by == RefusedBy::kBudget) &&
      joint_.AwaitRoom(session.id, asked, now)) {
    const absl::Duration most = joint_.LeaseWait();
    return waiting_.Join({.session = session.id,
                          .request = request,
                          .asked = asked,
                          .job = session.job(),
                          .since = now,
                          .deadline = now + (asked.wait > absl::ZeroDuration()
                                                 ? std::min(most, asked.wait)
                                                 : most),
                          .for_plan = true});
  }
  WaitOrRefuse(session, request, asked, now, refusal, now, effects);
}

void Core::RefuseLease(Session& session, RequestId request,
                       const Refusal& refusal, absl::Time now,
                       Effects& effects) {
  ++journal_.stats.leases_refused[refusal.by];
  Log(now, EventKind::kRefuse,
      fmt::format("{}: {}", session.Label(),
                  std::string(refusal.why.message())),
      session.peer.principal, {session.id, request});
  Answer(session, request, refusal.why, effects);
}

Refusal Core::TakeLease(const Session& session, RequestId request,
                        const LeaseRequest& asked, absl::Time now,
                        Effects& effects) {
  if (!session.is_rank()) {
    return {absl::FailedPreconditionError(
                "an observer's session has no leases: attach as a rank"),
            RefusedBy::kBudget};
  }
  if (absl::Status drained = CheckDrain(); !drained.ok()) {
    return {std::move(drained), RefusedBy::kDrain};
  }
  const Ledger::Asked answer =
      ledger_.Lease(session.id, request, asked, now, effects);
  if (answer.decided) Decide(*answer.decided, now, effects);
  return answer.refusal;
}

void Core::Decide(const Ledger::Decided& decided, absl::Time now,
                  Effects& effects) {
  Session& session = sessions_.Edit(decided.session);
  if (!decided.failure.ok()) {
    ++journal_.stats.leases_refused[RefusedBy::kDevice];
    const absl::Status why =
        Annotate(decided.failure,
                 fmt::format("{}: {} could not be made", Name(decided.pool),
                             FormatBytes(decided.size)));
    Log(now, EventKind::kRefuse, std::string(why.message()),
        session.peer.principal, {session.id, decided.request});
    TellHolding(session, effects);
    return Answer(session, decided.request, why, effects);
  }
  ++journal_.stats.leases_granted;
  journal_.stats.lease_seconds.Observe(
      absl::ToDoubleSeconds(now - decided.asked_at));
  Log(now, EventKind::kLease,
      fmt::format("{}: {} of {} in {} extents (lease {})", session.Label(),
                  FormatBytes(decided.size), Name(decided.pool),
                  decided.slices.size(), decided.lease.value()),
      session.peer.principal, {session.id, decided.request});
  TellHolding(session, effects);
  Answer(session, decided.request, GrantedReply{decided.lease, decided.slices},
         effects);
}

void Core::TellHolding(const Session& session, Effects& effects) const {
  if (!session.is_rank()) return;  // another rank may have its slot
  effects.push_back(HoldsMemory{session.grant_slot, HasLease(session.id)});
}

Effects Core::ExtentsMade(const std::vector<ExtentOutcome>& outcomes,
                          absl::Time now) {
  Effects effects;
  std::set<PoolId> pools;
  for (const auto& [extent, made] : outcomes) {
    pools.insert(ledger_.PoolOfMaking(extent));
    const auto decided = made.ok()
                             ? ledger_.ExtentMade(extent, now, effects)
                             : ledger_.ExtentFailed(extent, made, now, effects);
    if (decided) Decide(*decided, now, effects);
  }
  // Also leases that wait behind these in the pool: the work goes on.
  for (const Ledger::Progress& each :
       ledger_.Making(pools, now - kTellProgressAfter)) {
    effects.push_back(SendNotice{
        each.session, LeaseProgressNotice{each.request, each.made, each.size}});
  }
  Settle(now, effects);
  return effects;
}

Effects Core::MachineNeeds(Bytes bytes) {
  Effects effects;
  ledger_.GiveUpIdleHost(bytes, effects);
  return effects;
}

Effects Core::GrantNotSent(SessionId id, LeaseId lease, const absl::Status& why,
                           absl::Time now) {
  Effects effects;
  const auto request = ledger_.Free(id, lease, now, effects);
  if (!request) return effects;  // its session ended meanwhile
  Session& session = sessions_.Edit(id);
  TellHolding(session, effects);
  ++journal_.stats.leases_refused[RefusedBy::kDevice];
  const absl::Status refused =
      Annotate(why, "the memory is there and its descriptors are not");
  Log(now, EventKind::kRefuse, std::string(refused.message()),
      session.peer.principal, {id, *request});
  session.history.TakeBack(*request, refused);
  effects.push_back(SendReply{id, *request, refused});
  Settle(now, effects);
  return effects;
}

void Core::Handle(Session& session, RequestId request, const FreeRequest& asked,
                  absl::Time now, Effects& effects) {
  const auto ended = ledger_.Free(session.id, asked.lease, now, effects);
  if (!ended) {
    return Answer(session, request,
                  absl::NotFoundError(fmt::format("no lease {} in this session",
                                                  asked.lease.value())),
                  effects);
  }
  session.history.LeaseEnded(*ended);
  TellHolding(session, effects);
  Answer(session, request, FreedReply{}, effects);
}

Effects Core::HoldersKnown(const std::vector<HolderAnswer>& answers,
                           absl::Time now) {
  Effects effects;
  Bytes came_back;
  for (const HolderAnswer& answer : answers) {
    came_back += ledger_.HolderKnown(answer.extent, answer.held, now);
  }
  if (came_back > Bytes(0)) joint_.MemoryCameBack(now);
  Settle(now, effects);
  return effects;
}

void Core::Settle(absl::Time now, Effects& effects) {
  joint_.Settle(now, effects);
  ReleaseWaiting(now, effects);
  UseLinksThatWait(effects);
  PromiseAnew(now, effects);
  NotePlansTold(effects);
}

}  // namespace sluice::daemon
