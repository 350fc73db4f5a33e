#include "daemon/core/leases.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {

// Longer than most leases take to make.
constexpr absl::Duration kTellProgressAfter = absl::Milliseconds(200);

Refusal Leases::Take(const Waiter& lease, absl::Time now, Effects& effects) {
  if (!sessions_.at(lease.session).is_rank()) {
    return {absl::FailedPreconditionError(
                "an observer's session has no leases: attach as a rank"),
            RefusedBy::kBudget};
  }
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
  journal_.Log(now, EventKind::kRefuse,
               fmt::format("{}: {}", session.Label(),
                           std::string(refusal.why.message())),
               session.peer.principal, {session.id, lease.request});
  session.Answer(lease.request, refusal.why, effects);
}

void Leases::Decide(const Ledger::Decided& decided, absl::Time now,
                    Effects& effects) {
  const auto& [id, lease] = decided;
  Session& session = sessions_.Edit(lease.session);
  TellHolding(session, effects);
  if (!lease.failure.ok()) {
    ++journal_.stats.leases_refused[RefusedBy::kDevice];
    const absl::Status why = Annotate(
        lease.failure, fmt::format("{}: {} could not be made", Name(lease.pool),
                                   FormatBytes(lease.size)));
    journal_.Log(now, EventKind::kRefuse, std::string(why.message()),
                 session.peer.principal, {session.id, lease.request});
    return session.Answer(lease.request, why, effects);
  }
  ++journal_.stats.leases_granted;
  journal_.stats.lease_seconds.Observe(
      absl::ToDoubleSeconds(now - lease.asked_at));
  journal_.Log(now, EventKind::kLease,
               fmt::format("{}: {} of {} in {} extents (lease {})",
                           session.Label(), FormatBytes(lease.size),
                           Name(lease.pool), lease.slices.size(), id.value()),
               session.peer.principal, {session.id, lease.request});
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
  // Leases behind these in the pool's queue progress too.
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
  ++journal_.stats.leases_refused[RefusedBy::kDevice];
  const absl::Status refused =
      Annotate(why, "the memory is there and its descriptors are not");
  journal_.Log(now, EventKind::kRefuse, std::string(refused.message()),
               session.peer.principal, {id, *request});
  session.history.TakeBack(*request, refused);
  effects.push_back(SendReply{id, *request, refused});
}

void Leases::Free(Session& session, RequestId request, const FreeRequest& asked,
                  absl::Time now, Effects& effects) {
  const auto ended = ledger_.Free(session.id, asked.lease, now, effects);
  Reply reply = FreedReply{};
  if (ended) {
    session.history.LeaseEnded(*ended);
    TellHolding(session, effects);
  } else {
    reply = absl::NotFoundError(
        fmt::format("no lease {} in this session", asked.lease.value()));
  }
  session.Answer(request, std::move(reply), effects);
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

void Leases::NameHeldOfFaulty(const NodeConfig& config, absl::Time now) {
  for (const GpuConfig& gpu : config.gpus) {
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
                 fmt::format("{} of {} are held by {}, and come back when it "
                             "ends",
                             FormatBytes(bytes), Name(id), by),
                 {config.own_uid, ""});
  }
}

}  // namespace sluice::daemon
