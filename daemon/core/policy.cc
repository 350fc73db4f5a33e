#include "daemon/core/policy.h"

#include <fmt/format.h>

#include <cmath>

#include "daemon/bandwidth/topology.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

// Faster than any link today, and far from overflow.
constexpr double kFastest = 1e15;

absl::Status CheckSpeeds(const std::string& name, const MeasuredLink& link) {
  for (const double speed : {link.h2d, link.d2h, link.both}) {
    if (std::isfinite(speed) && speed >= 0 && speed <= kFastest) continue;
    return absl::InvalidArgumentError(
        fmt::format("link {} was measured at {} bytes per second: give 0 to "
                    "{:g}, 0 for no limit",
                    Printable(name), speed, kFastest));
  }
  if (link != MeasuredLink()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "link {} was measured to limit nothing: leave it out", Printable(name)));
}

}  // namespace

std::vector<LinkSpeed> LinksWith(const std::vector<LinkSpeed>& configured,
                                 const MeasuredLinks& measured) {
  std::vector<LinkSpeed> links = configured;
  for (LinkSpeed& link : links) {
    const MeasuredLink* speeds = FindOrNull(measured.links, link.name);
    if (speeds == nullptr || IsLimited(link)) continue;
    link.h2d_bytes_per_second = speeds->h2d;
    link.d2h_bytes_per_second = speeds->d2h;
    link.both_bytes_per_second = speeds->both;
    link.measured = true;
  }
  return links;
}

absl::Status CheckMeasured(const std::vector<LinkSpeed>& configured,
                           const MeasuredLinks& measured) {
  if (measured.links.empty()) {
    return absl::InvalidArgumentError("the measurement names no link");
  }
  for (const auto& [name, link] : measured.links) {
    if (LinkPath(configured, name).empty()) {
      return absl::InvalidArgumentError(
          fmt::format("link {} was measured, but this node has no such link: "
                      "measure again",
                      Printable(name)));
    }
    if (absl::Status bad = CheckSpeeds(name, link); !bad.ok()) return bad;
  }
  const auto made = bandwidth::Topology::Make(LinksWith(configured, measured));
  if (made.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "the measured speeds do not fit the configured speeds of other links "
      "({}): remove those from the configuration",
      std::string(made.status().message())));
}

}  // namespace sluice::daemon
