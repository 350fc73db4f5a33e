// What administrators do: changes of the policy, evictions, the end.
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

std::string TextOf(const Drain& drain) {
  return fmt::format(
      "the node is drained by {}{}: nothing new is granted until an "
      "administrator runs sluicectl undrain",
      Who(drain.who),
      drain.reason.empty() ? "" : " (" + Printable(drain.reason) + ")");
}

}  // namespace

absl::StatusOr<std::string> Core::Put(const BudgetChange& change,
                                      absl::Time now, Policy& policy) const {
  Budgets budgets = ledger_.budgets();
  SLUICE_ASSIGN_OR_RETURN(Limits limits, budgets.Get(change.target));
  limits.gpu = change.gpu.value_or(limits.gpu);
  limits.host = change.host.value_or(limits.host);
  SLUICE_RETURN_IF_ERROR(
      budgets.Set(change.target, limits, {true, change.who, now}));
  policy.limits = budgets.Live();
  const auto text = [](Bytes limit) {
    return limit == Limits::kUnlimited ? "unlimited" : FormatBytes(limit);
  };
  return fmt::format("{}: GPU {}, host {}, set by {}",
                     change.target.job.empty()
                         ? fmt::format("user {}", *change.target.uid)
                         : "job " + Printable(change.target.job),
                     text(limits.gpu), text(limits.host), Who(change.who));
}

absl::StatusOr<std::string> Core::Put(const ReservationChange& change,
                                      absl::Time now, Policy& policy) const {
  const auto& [pool, whose, bytes, who] = change;
  const Bytes promised = pool.kind == PoolKind::kHost
                             ? joint_.HostPromisedBeside(pool.ordinal, whose)
                             : Bytes(0);
  SLUICE_RETURN_IF_ERROR(ledger_.MayReserve(pool, whose, bytes, promised));
  SetReservation(policy.reservations, pool, whose, {bytes, {true, who, now}});
  return fmt::format("{}: {} reserved for {}, set by {}", Name(pool),
                     bytes > Bytes(0) ? FormatBytes(bytes) : "nothing is",
                     Name(whose), Who(who));
}

absl::StatusOr<std::string> Core::Put(const DrainChange& change, absl::Time now,
                                      Policy& policy) const {
  if (!change.drain && !drain_) {
    return absl::FailedPreconditionError("the node is not drained");
  }
  policy.drain = change.drain;
  if (!policy.drain) return "the node is not drained any more";
  policy.drain->at = now;
  return TextOf(*policy.drain);
}

absl::StatusOr<std::string> Core::Put(const LinksChange& change, absl::Time now,
                                      Policy& policy) const {
  const char* const when =
      ranks() > 0 ? ", as soon as no rank is attached" : ", from now on";
  policy.measured = change.measured;
  if (!policy.measured) {
    if (measured_) {
      return fmt::format("links: what was measured is forgotten{}", when);
    }
    return absl::FailedPreconditionError(
        "nothing that was measured is kept: there is nothing to forget");
  }
  MeasuredLinks& measured = *policy.measured;
  SLUICE_RETURN_IF_ERROR(CheckMeasured(configured_links_, measured));
  measured.by = {true, measured.by.who, now};
  return fmt::format("links: measured speeds of {} are kept, set by {}{}",
                     measured.links.size(), Who(measured.by.who), when);
}

absl::StatusOr<Policy> Core::PolicyWith(const PolicyChange& change,
                                        absl::Time now) const {
  Policy changed = policy();
  const auto put = [&](const auto& typed) { return Put(typed, now, changed); };
  SLUICE_RETURN_IF_ERROR(std::visit(put, change).status());
  return changed;
}

absl::StatusOr<Effects> Core::Apply(const PolicyChange& change,
                                    absl::Time now) {
  Policy changed = policy();
  const auto put = [&](const auto& typed) { return Put(typed, now, changed); };
  SLUICE_ASSIGN_OR_RETURN(std::string text, std::visit(put, change));
  Enforce(changed);
  if (changed.measured != measured_) {
    measured_ = std::move(changed.measured);
    links_wait_ = true;
  }
  Log(now,
      std::holds_alternative<DrainChange>(change) ? EventKind::kDrain
                                                  : EventKind::kBudget,
      std::move(text), {});
  waiting_.WakeAll();
  Effects effects;
  Settle(now, effects);
  return effects;
}

void Core::Enforce(const Policy& policy) {
  ledger_.budgets().SetLive(policy.limits);
  ledger_.SetReservations(policy.reservations);
  drain_ = policy.drain;
}

absl::Status Core::SetPolicy(const Policy& policy, absl::Time now) {
  SLUICE_CHECK(sessions_.empty());
  SLUICE_RETURN_IF_ERROR(ledger_.CheckSums(policy.reservations));
  Enforce(policy);
  if (drain_) Log(now, EventKind::kDrain, TextOf(*drain_), {});
  StartMeasured(policy.measured, now);
  return absl::OkStatus();
}

void Core::UseLinksThatWait(Effects& effects) {
  if (!links_wait_ || ranks() > 0) return;
  links_wait_ = false;
  config_.links =
      measured_ ? LinksWith(configured_links_, *measured_) : configured_links_;
  effects.push_back(UseLinks{config_.links});
}

// The node may have changed since: what does not fit it is kept, and not used.
void Core::StartMeasured(const std::optional<MeasuredLinks>& measured,
                         absl::Time now) {
  measured_ = measured;
  if (!measured) return;
  const absl::Status fits = CheckMeasured(configured_links_, *measured);
  if (fits.ok()) {
    config_.links = LinksWith(configured_links_, *measured);
    return;
  }
  Log(now, EventKind::kStart,
      fmt::format("what was measured of links is not used: {}; sluicectl "
                  "bandwidth forget drops it",
                  std::string(fits.message())),
      {config_.own_uid, ""});
}

absl::Status Core::CheckDrain() const {
  if (!drain_) return absl::OkStatus();
  return absl::FailedPreconditionError(TextOf(*drain_));
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
