#include "daemon/core/live_policy.h"

#include <fmt/format.h>

#include <utility>

#include "proto/base/overloaded.h"
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

absl::StatusOr<std::string> LivePolicy::Change(const PolicyChange& change,
                                               absl::Time now,
                                               Policy& policy) const {
  using Text = absl::StatusOr<std::string>;
  const Overloaded apply = {
      [&](const BudgetChange& to) -> Text {
        Budgets budgets = ledger_.budgets();
        SLUICE_ASSIGN_OR_RETURN(Limits limits, budgets.Get(to.target));
        limits.gpu = to.gpu.value_or(limits.gpu);
        limits.host = to.host.value_or(limits.host);
        SLUICE_RETURN_IF_ERROR(
            budgets.Set(to.target, limits, {true, to.who, now}));
        policy.limits = budgets.Live();
        const auto text = [](Bytes limit) {
          return limit == Limits::kUnlimited ? "unlimited" : FormatBytes(limit);
        };
        return fmt::format("{}: GPU {}, host {}, set by {}",
                           to.target.job.empty()
                               ? fmt::format("user {}", *to.target.uid)
                               : "job " + Printable(to.target.job),
                           text(limits.gpu), text(limits.host), Who(to.who));
      },
      [&](const ReservationChange& to) -> Text {
        SLUICE_RETURN_IF_ERROR(
            ledger_.MayReserve(to.pool, to.whose, to.bytes,
                               joint_.PromisedBeside(to.pool, to.whose)));
        SetReservation(policy.reservations, to.pool, to.whose,
                       {to.bytes, {true, to.who, now}});
        return fmt::format(
            "{}: {} reserved for {}, set by {}", Name(to.pool),
            to.bytes > Bytes(0) ? FormatBytes(to.bytes) : "nothing is",
            Name(to.whose), Who(to.who));
      },
      [&](const DrainChange& to) -> Text {
        if (!to.drain && !drain_) {
          return absl::FailedPreconditionError("the node is not drained");
        }
        policy.drain = to.drain;
        if (!policy.drain) return "the node is not drained any more";
        policy.drain->at = now;
        return TextOf(*policy.drain);
      },
      [&](const LinksChange& to) -> Text {
        const char* const when = sessions_.ranks() > 0
                                     ? ", as soon as no rank is attached"
                                     : ", from now on";
        policy.measured = to.measured;
        if (!policy.measured && !measured_) {
          return absl::FailedPreconditionError(
              "no measurement is kept: there is nothing to forget");
        }
        if (!policy.measured) {
          return fmt::format("links: the measurement is forgotten{}", when);
        }
        MeasuredLinks& measured = *policy.measured;
        SLUICE_RETURN_IF_ERROR(CheckMeasured(configured_links_, measured));
        measured.by = {true, measured.by.who, now};
        return fmt::format("links: measured speeds of {} are kept, set by {}{}",
                           measured.links.size(), Who(measured.by.who), when);
      }};
  return std::visit(apply, change);
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
  // The earlier daemon's node may have had other links. A measurement that does
  // not fit this node is kept, but not used.
  const absl::Status fits = CheckMeasured(configured_links_, *measured_);
  if (fits.ok()) {
    config_.links = LinksWith(configured_links_, *measured_);
  } else {
    journal_.Log(now, EventKind::kStart,
                 fmt::format("the measured links are not used: {}; sluicectl "
                             "bandwidth forget drops them",
                             std::string(fits.message())),
                 {config_.own_uid, ""});
  }
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
