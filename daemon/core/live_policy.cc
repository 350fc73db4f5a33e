#include "daemon/core/live_policy.h"

#include <fmt/format.h>

#include <utility>

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

absl::StatusOr<std::string> LivePolicy::Put(const BudgetChange& change,
                                            absl::Time now,
                                            Policy& policy) const {
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

absl::StatusOr<std::string> LivePolicy::Put(const ReservationChange& change,
                                            absl::Time now,
                                            Policy& policy) const {
  const auto& [pool, whose, bytes, who] = change;
  SLUICE_RETURN_IF_ERROR(ledger_.MayReserve(
      pool, whose, bytes, joint_.PromisedBeside(pool, whose)));
  SetReservation(policy.reservations, pool, whose, {bytes, {true, who, now}});
  return fmt::format("{}: {} reserved for {}, set by {}", Name(pool),
                     bytes > Bytes(0) ? FormatBytes(bytes) : "nothing is",
                     Name(whose), Who(who));
}

absl::StatusOr<std::string> LivePolicy::Put(const DrainChange& change,
                                            absl::Time now,
                                            Policy& policy) const {
  if (!change.drain && !drain_) {
    return absl::FailedPreconditionError("the node is not drained");
  }
  policy.drain = change.drain;
  if (!policy.drain) return "the node is not drained any more";
  policy.drain->at = now;
  return TextOf(*policy.drain);
}

absl::StatusOr<std::string> LivePolicy::Put(const LinksChange& change,
                                            absl::Time now,
                                            Policy& policy) const {
  const char* const when = sessions_.ranks() > 0
                               ? ", as soon as no rank is attached"
                               : ", from now on";
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

absl::StatusOr<std::string> LivePolicy::Change(const PolicyChange& change,
                                               absl::Time now,
                                               Policy& policy) const {
  return std::visit([&](const auto& typed) { return Put(typed, now, policy); },
                    change);
}

absl::StatusOr<Policy> LivePolicy::With(const PolicyChange& change,
                                        absl::Time now) const {
  Policy changed = policy();
  SLUICE_RETURN_IF_ERROR(Change(change, now, changed).status());
  return changed;
}

absl::Status LivePolicy::Apply(const PolicyChange& change, absl::Time now) {
  Policy changed = policy();
  SLUICE_ASSIGN_OR_RETURN(std::string text, Change(change, now, changed));
  Enforce(changed);
  if (changed.measured != measured_) {
    measured_ = std::move(changed.measured);
    links_wait_ = true;
  }
  journal_.Log(now,
               std::holds_alternative<DrainChange>(change) ? EventKind::kDrain
                                                           : EventKind::kBudget,
               std::move(text), {});
  return absl::OkStatus();
}

void LivePolicy::Enforce(const Policy& policy) {
  ledger_.budgets().SetLive(policy.limits);
  ledger_.SetReservations(policy.reservations);
  drain_ = policy.drain;
}

absl::Status LivePolicy::Start(const Policy& policy, absl::Time now) {
  SLUICE_CHECK(sessions_.rows().empty());
  SLUICE_RETURN_IF_ERROR(ledger_.CheckSums(policy.reservations));
  Enforce(policy);
  if (drain_) journal_.Log(now, EventKind::kDrain, TextOf(*drain_), {});
  measured_ = policy.measured;
  if (!measured_) return absl::OkStatus();
  // This node may differ from the earlier daemon's. A measurement that does not
  // fit it is kept, but not used.
  const absl::Status fits = CheckMeasured(configured_links_, *measured_);
  if (fits.ok()) {
    config_.links = LinksWith(configured_links_, *measured_);
    return absl::OkStatus();
  }
  journal_.Log(now, EventKind::kStart,
               fmt::format("what was measured of links is not used: {}; "
                           "sluicectl bandwidth forget drops it",
                           std::string(fits.message())),
               {config_.own_uid, ""});
  return absl::OkStatus();
}

void LivePolicy::UseMeasured(Effects& effects) {
  if (!links_wait_ || sessions_.ranks() > 0) return;
  links_wait_ = false;
  config_.links =
      measured_ ? LinksWith(configured_links_, *measured_) : configured_links_;
  effects.push_back(UseLinks{config_.links});
}

absl::Status LivePolicy::CheckDrain() const {
  return drain_ ? absl::FailedPreconditionError(TextOf(*drain_))
                : absl::OkStatus();
}

}  // namespace sluice::daemon
