// What was measured of links: when grants and plans go by it.
#include <fmt/format.h>

#include <utility>

#include "daemon/core/core.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

std::string SaidOf(const std::optional<MeasuredLinks>& measured, bool waits) {
  const std::string when =
      waits ? ", as soon as no rank is attached" : ", from now on";
  if (!measured) return "links: what was measured is forgotten" + when;
  return fmt::format("links: measured speeds of {} are kept, set by {}{}",
                     measured->links.size(),
                     measured->by.who.empty() ? "an administrator"
                                              : Printable(measured->by.who),
                     when);
}

}  // namespace

absl::StatusOr<Policy> Core::PolicyMeasured(
    std::optional<MeasuredLinks> measured) const {
  if (measured) {
    SLUICE_RETURN_IF_ERROR(CheckMeasured(configured_links_, *measured));
  } else if (!measured_) {
    return absl::FailedPreconditionError(
        "nothing that was measured is kept: there is nothing to forget");
  }
  Policy kept = policy();
  kept.measured = std::move(measured);
  return kept;
}

Effects Core::SetMeasured(std::optional<MeasuredLinks> measured,
                          absl::Time now) {
  measured_ = std::move(measured);
  links_wait_ = true;
  Effects effects;
  UseLinksThatWait(effects);
  Log(now, EventKind::kBudget, SaidOf(measured_, links_wait_), {});
  return effects;
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

}  // namespace sluice::daemon
