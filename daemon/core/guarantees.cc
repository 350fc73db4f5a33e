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

// The slower direction, because a guarantee is of both; infinite: neither is
// limited, which is enough for everybody.
double SlowerDirection(const LinkSpeed& link) {
  double speed = INFINITY;
  for (const int direction : {kH2d, kD2h}) {
    const double each = SpeedBothWays(link, direction);
    if (each > 0) speed = std::min(speed, each);
  }
  return speed;
}

}  // namespace

double WeightOf(const NodeConfig& config, const Principal& who) {
  const auto found = config.user_weights.find(who.uid);
  return found != config.user_weights.end() ? found->second : 1;
}

absl::Status AdmitGuarantee(const LinkSpeed& link, double asked,
                            const Promised& promised) {
  const double speed = SlowerDirection(link);
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

GuaranteeLeft KeepGuarantee(const LinkSpeed& link, double had,
                            const Promised& promised) {
  const double speed = SlowerDirection(link);
  const double all = kPromised * speed, each = kPromisedEach * speed;
  const bool own = each - promised.to_principal < all - promised.all;
  const double most = own ? each : all;
  const double taken = own ? promised.to_principal : promised.all;
  // Sums of rates that just fit may be a rounding more.
  constexpr double kRounding = 1 + 1e-9;
  if (had <= (most - taken) * kRounding) return {had, ""};
  return {std::max(0.0, std::floor(most - taken)),
          fmt::format("link {} promises at most {}{} now, of which {} are "
                      "promised already",
                      link.name, Rate(most), own ? " to one user" : "",
                      Rate(taken))};
}

std::string LoweredText(double had, const GuaranteeLeft& left) {
  return fmt::format(
      "its guarantee is {} instead of {} since another daemon took over: {}; "
      "what it copies beyond that has a fair share",
      left.bytes_per_second > 0 ? Rate(left.bytes_per_second) : "none",
      Rate(had), left.why);
}

}  // namespace sluice::daemon
