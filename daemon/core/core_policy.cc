// What administrators do: limits, reservations, whether the node is drained,
// whose sessions end.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/core/core.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

std::string Who(const std::string& who) {
  return who.empty() ? "an administrator" : Printable(who);
}

// Sets what is given of the limits of `target`, and returns all of them.
absl::StatusOr<Limits> Change(Budgets& budgets, const BudgetTarget& target,
                              std::optional<Bytes> gpu,
                              std::optional<Bytes> host, SetBy by) {
  SLUICE_ASSIGN_OR_RETURN(Limits limits, budgets.Get(target));
  limits.gpu = gpu.value_or(limits.gpu);
  limits.host = host.value_or(limits.host);
  SLUICE_RETURN_IF_ERROR(budgets.Set(target, limits, std::move(by)));
  return limits;
}

}  // namespace

absl::StatusOr<Limits> Core::SetBudget(const BudgetTarget& target,
                                       std::optional<Bytes> gpu,
                                       std::optional<Bytes> host,
                                       absl::Time now, const std::string& who) {
  SLUICE_ASSIGN_OR_RETURN(
      const Limits limits,
      Change(ledger_.budgets(), target, gpu, host, {true, who, now}));
  const auto text = [](Bytes limit) {
    return limit == Limits::kUnlimited ? "unlimited" : FormatBytes(limit);
  };
  Log(now, EventKind::kBudget,
      fmt::format("{}: GPU {}, host {}, set by {}",
                  target.job.empty() ? fmt::format("user {}", *target.uid)
                                     : "job " + Printable(target.job),
                  text(limits.gpu), text(limits.host), Who(who)),
      {});
  return limits;
}

absl::StatusOr<Policy> Core::PolicyWith(const BudgetTarget& target,
                                        std::optional<Bytes> gpu,
                                        std::optional<Bytes> host,
                                        absl::Time now,
                                        const std::string& who) const {
  Budgets tried = ledger_.budgets();
  SLUICE_RETURN_IF_ERROR(
      Change(tried, target, gpu, host, {true, who, now}).status());
  Policy kept = policy();
  kept.limits = tried.Live();
  return kept;
}

absl::Status Core::Reserve(PoolId pool, const Principal& whose, Bytes bytes,
                           absl::Time now, const std::string& who) {
  SLUICE_RETURN_IF_ERROR(
      PolicyReserving(pool, whose, bytes, now, who).status());
  ledger_.Reserve(pool, whose, {bytes, {true, who, now}});
  Log(now, EventKind::kBudget,
      fmt::format("{}: {} reserved for {}, set by {}", Name(pool),
                  bytes > Bytes(0) ? FormatBytes(bytes) : "nothing is",
                  Name(whose), Who(who)),
      {});
  return absl::OkStatus();
}

absl::StatusOr<Policy> Core::PolicyReserving(PoolId pool,
                                             const Principal& whose,
                                             Bytes bytes, absl::Time now,
                                             const std::string& who) const {
  const Bytes promised = pool.kind == PoolKind::kHost
                             ? joint_.HostPromisedBeside(pool.ordinal, whose)
                             : Bytes(0);
  SLUICE_RETURN_IF_ERROR(ledger_.MayReserve(pool, whose, bytes, promised));
  Policy kept = policy();
  SetReservation(kept.reservations, pool, whose, {bytes, {true, who, now}});
  return kept;
}

void Core::SetDrain(std::optional<Drain> drain, absl::Time now) {
  const bool was = drain_.has_value();
  drain_ = std::move(drain);
  if (!drain_ && !was) return;
  Log(now, EventKind::kDrain,
      drain_ ? std::string(CheckDrain().message())
             : "the node is not drained any more",
      {});
}

absl::Status Core::SetPolicy(const Policy& policy, absl::Time now) {
  SLUICE_CHECK(sessions_.empty());
  SLUICE_RETURN_IF_ERROR(ledger_.SetReservations(policy.reservations));
  ledger_.budgets().SetLive(policy.limits);
  SetDrain(policy.drain, now);
  StartMeasured(policy.measured, now);
  return absl::OkStatus();
}

absl::Status Core::CheckDrain() const {
  if (!drain_) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "the node is drained by {}{}: nothing new is granted until an "
      "administrator runs sluicectl undrain",
      Who(drain_->who),
      drain_->reason.empty() ? "" : " (" + Printable(drain_->reason) + ")"));
}

Core::Evicted Core::Evict(const std::string& job, std::optional<uint32_t> uid,
                          bool kill, const std::string& reason,
                          absl::Time now) {
  Evicted evicted;
  const std::string said = Printable(reason);
  std::set<std::pair<int, uint64_t>> killed;
  for (const auto& [id, session] : sessions_) {
    if (session.grant_slot < 0 || session.hello.job != job) continue;
    if (uid.has_value() && session.peer.principal.uid != *uid) continue;
    const bool open = session.state == Session::State::kAttached;
    if (open) {
      ++evicted.sessions;
      ++journal_.stats.client_deaths[Death::kEvicted];
      evicted.effects.push_back(SendNotice{id, EvictedNotice{said}});
      Log(now, EventKind::kEvict,
          fmt::format("{}: {}", session.Described(), said),
          session.peer.principal, {session.id});
      Close(sessions_.Edit(id), now, evicted.effects);
    }
    if (!kill) continue;
    evicted.effects.push_back(KillProcess{id});
    killed.emplace(session.peer.pid, session.peer.start_ticks);
  }
  evicted.processes = static_cast<int>(killed.size());
  Settle(now, evicted.effects);
  return evicted;
}

Effects Core::ShutDown(const std::string& reason, absl::Time now) {
  Effects effects;
  for (const auto& [id, session] : sessions_) {
    if (session.state == Session::State::kAttached) {
      effects.push_back(SendNotice{id, ShuttingDownNotice{reason}});
    }
  }
  Log(now, EventKind::kStop, reason, {});
  return effects;
}

int Core::ranks() const {
  return static_cast<int>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [](const auto& each) { return each.second.is_rank(); }));
}

}  // namespace sluice::daemon
