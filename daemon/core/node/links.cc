#include "daemon/core/node/links.h"

#include <algorithm>
#include <optional>

#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

// Returns the lower of two speeds, either of which may be 0 (no limit).
double Lower(double a, double b) {
  if (a <= 0 || b <= 0) return std::max({a, b, 0.0});
  return std::min(a, b);
}

// Returns the lower of the direction's own speed and the fraction `part` of the
// speed of both directions.
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

absl::StatusOr<bandwidth::Topology> TopologyOf(
    const std::vector<LinkSpeed>& links) {
  std::vector<bandwidth::Link> all;
  all.reserve(links.size());
  for (const LinkSpeed& link : links) {
    const std::vector<size_t> path = LinkPath(links, link.name);
    std::optional<int> parent;
    if (path.size() > 1) parent = static_cast<int>(path[1]);
    all.push_back({link.name, parent, std::max(0.0, link.h2d_bytes_per_second),
                   std::max(0.0, link.d2h_bytes_per_second),
                   std::max(0.0, link.both_bytes_per_second)});
  }
  return bandwidth::Topology::Make(all);
}

}  // namespace sluice::daemon
