#include "daemon/bandwidth/topology.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Returns the lower of two speeds, either of which may be 0 (no limit).
double Lower(double a, double b) {
  if (a <= 0 || b <= 0) return std::max({a, b, 0.0});
  return std::min(a, b);
}

// Returns the lower of the direction's own speed and the fraction `part` of the
// limit of both directions together.
double SpeedOf(const LinkSpeed& link, int direction, double part) {
  return Lower(
      direction == kH2d ? link.h2d_bytes_per_second : link.d2h_bytes_per_second,
      link.both_bytes_per_second * part);
}

}  // namespace

double SpeedOf(const LinkSpeed& link, int direction) {
  return SpeedOf(link, direction, 1);
}

double SpeedBothWays(const LinkSpeed& link, int direction) {
  return SpeedOf(link, direction, 0.5);
}

bool IsLimited(const LinkSpeed& link) {
  return SpeedOf(link, kH2d) > 0 || SpeedOf(link, kD2h) > 0;
}

std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name) {
  std::vector<size_t> path;
  std::string next = name;
  while (!next.empty()) {
    const auto at = std::ranges::find(links, next, &LinkSpeed::name);
    if (at == links.end()) break;
    const auto index = static_cast<size_t>(at - links.begin());
    if (std::ranges::count(path, index) > 0) break;
    path.push_back(index);
    next = at->parent;
  }
  return path;
}

bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other) {
  return std::ranges::any_of(LinkPath(links, name),
                             [&](size_t i) { return links[i].name == other; });
}

namespace bandwidth {
namespace {

// Each link has three channels with consecutive numbers: h2d, d2h, both.
constexpr int kBoth = 2;
constexpr int kPerLink = 3;

double CapacityOf(double speed) { return speed > 0 ? speed : kUnlimited; }

absl::Status Refuse(const LinkSpeed& link, const std::string& why) {
  return absl::InvalidArgumentError(fmt::format("link {}: {}", link.name, why));
}

}  // namespace

absl::StatusOr<Topology> Topology::Make(const std::vector<LinkSpeed>& links) {
  for (const LinkSpeed& link : links) {
    for (const double speed :
         {link.h2d_bytes_per_second, link.d2h_bytes_per_second,
          link.both_bytes_per_second}) {
      if (speed != kUnlimited) continue;
      return Refuse(link, fmt::format("a speed of {} bytes per second: give a "
                                      "finite one, or 0 for no limit",
                                      speed));
    }
  }
  Topology made;
  for (const LinkSpeed& link : links) {
    const std::vector<size_t> path = LinkPath(links, link.name);
    if (!path.empty() && !LinkPath(links, links[path.back()].parent).empty()) {
      return Refuse(link, "its parents form a cycle");
    }
    const bool shared = link.both_bytes_per_second > 0;
    bool shared_above = false;
    for (const size_t i : path) {
      const LinkSpeed& at = links[i];
      if (i == path[0]) continue;
      shared_above = shared_above || at.both_bytes_per_second > 0;
      if (!shared ||
          (at.h2d_bytes_per_second <= 0 && at.d2h_bytes_per_second <= 0)) {
        continue;
      }
      return Refuse(link, fmt::format("it limits both directions together, but "
                                      "link {} above it limits each alone: "
                                      "give that link only both_bytes_per_s",
                                      at.name));
    }
    const int both = static_cast<int>(made.channels_.size()) + kBoth;
    const auto above = [&](int which) -> std::optional<int> {
      if (which != kBoth && shared) return both;
      if (path.size() < 2 || (which == kBoth && !shared_above)) return {};
      return static_cast<int>(path[1]) * kPerLink + which;
    };
    made.channels_.insert(
        made.channels_.end(),
        {{link.name + " h2d", CapacityOf(link.h2d_bytes_per_second),
          above(kH2d)},
         {link.name + " d2h", CapacityOf(link.d2h_bytes_per_second),
          above(kD2h)},
         {link.name + " both ways", CapacityOf(link.both_bytes_per_second),
          above(kBoth)}});
  }
  return made;
}

int Topology::channel_of(int link, int direction) const {
  SLUICE_CHECK(direction == kH2d || direction == kD2h);
  const int channel = link * kPerLink + direction;
  SLUICE_CHECK(link >= 0 && channel < static_cast<int>(channels_.size()));
  return channel;
}

std::vector<int> Topology::PathOf(int channel) const {
  std::vector<int> path;
  for (std::optional<int> at = channel; at; at = channels_[*at].parent) {
    path.push_back(*at);
  }
  return path;
}

}  // namespace bandwidth
}  // namespace sluice::daemon
