// What was measured of links: when grants and plans go by it.
#include <fmt/format.h>

#include <utility>

#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {

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
