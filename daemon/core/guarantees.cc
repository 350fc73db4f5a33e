#include "daemon/core/guarantees.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "daemon/core/links.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

// "1.20 GB/s": rates are decimal, as links are sold.
std::string Rate(double bytes_per_second) {
  if (bytes_per_second >= 1e9) {
    return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
  }
  return fmt::format("{:.2f} MB/s", bytes_per_second / 1e6);
}

absl::Status Refuse(const LinkSpeed& link, double asked, double promised,
                    double most, const char* to_whom) {
  return absl::ResourceExhaustedError(fmt::format(
      "no guarantee of {} on link {}: {} of at most {} are promised{} already; "
      "ask for less, or run by a fair share without one",
      Rate(asked), link.name, Rate(promised), Rate(most), to_whom));
}

}  // namespace

double WeightOf(const NodeConfig& config, const Principal& who) {
  const auto found = config.user_weights.find(who.uid);
  return found != config.user_weights.end() ? found->second : 1;
}

absl::Status AdmitGuarantee(const LinkSpeed& link, double asked,
                            const Promised& promised) {
  // The slower direction, because a guarantee is of both; one that is not
  // limited has enough for everybody.
  double speed = INFINITY;
  for (const int direction : {kH2d, kD2h}) {
    const double each = SpeedBothWays(link, direction);
    if (each > 0) speed = std::min(speed, each);
  }
  if (speed == INFINITY) {
    return absl::FailedPreconditionError(fmt::format(
        "no guarantee of {}: the speed of {} is not known or not limited; "
        "copies run there without grants",
        Rate(asked), link.name.empty() ? "its link" : "link " + link.name));
  }
  if (!(promised.all + asked <= kPromised * speed)) {
    return Refuse(link, asked, promised.all, kPromised * speed, "");
  }
  if (!(promised.to_principal + asked <= kPromisedEach * speed)) {
    return Refuse(link, asked, promised.to_principal, kPromisedEach * speed,
                  " to its user");
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon
