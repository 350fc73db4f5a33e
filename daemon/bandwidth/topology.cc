#include "daemon/bandwidth/topology.h"

#include <fmt/format.h>

#include <cmath>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

// Each link has three channels with consecutive numbers: h2d, d2h, both.
constexpr int kBoth = 2;
constexpr int kPerLink = 3;

double CapacityOf(double speed) { return speed > 0 ? speed : kUnlimited; }

absl::Status Refuse(const Link& link, const std::string& why) {
  return absl::InvalidArgumentError(fmt::format("link {}: {}", link.name, why));
}

absl::Status CheckLink(const std::vector<Link>& links, const Link& link) {
  for (const double speed : {link.h2d, link.d2h, link.both}) {
    if (!(speed >= 0) || std::isinf(speed)) {
      return Refuse(link, fmt::format("a speed of {} bytes per second; give 0 "
                                      "for not limited, or more",
                                      speed));
    }
  }
  if (link.parent &&
      (*link.parent < 0 || *link.parent >= static_cast<int>(links.size()))) {
    return Refuse(link, fmt::format("its parent {} is none of {} links",
                                    *link.parent, links.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckNoCircle(const std::vector<Link>& links, const Link& link) {
  size_t steps = 0;
  for (const Link* at = &link; at->parent; at = &links[*at->parent]) {
    if (++steps > links.size()) {
      return Refuse(link, "its parents go round in a circle");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStaysShared(const std::vector<Link>& links,
                              const Link& link) {
  if (link.both <= 0) return absl::OkStatus();
  for (const Link* at = &link; at->parent;) {
    at = &links[*at->parent];
    if (at->h2d <= 0 && at->d2h <= 0) continue;
    return Refuse(link, fmt::format("both directions load it together, and "
                                    "apart {} above it; limit that one only "
                                    "in both together",
                                    at->name));
  }
  return absl::OkStatus();
}

// Returns whether both directions share the capacity of this link or of a link
// above it.
bool IsShared(const std::vector<Link>& links, const Link& link) {
  for (const Link* at = &link;; at = &links[*at->parent]) {
    if (at->both > 0) return true;
    if (!at->parent) return false;
  }
}

}  // namespace

absl::StatusOr<Topology> Topology::Make(const std::vector<Link>& links) {
  for (const Link& link : links) SLUICE_RETURN_IF_ERROR(CheckLink(links, link));
  for (const Link& link : links) {
    SLUICE_RETURN_IF_ERROR(CheckNoCircle(links, link));
    SLUICE_RETURN_IF_ERROR(CheckStaysShared(links, link));
  }
  Topology made;
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    const int first = static_cast<int>(i) * kPerLink;
    const auto above = [&](int which) -> std::optional<int> {
      if (which != kBoth && link.both > 0) return first + kBoth;
      if (!link.parent) return std::nullopt;
      const int parent = *link.parent * kPerLink;
      if (which != kBoth) return parent + which;
      return IsShared(links, links[*link.parent])
                 ? std::optional<int>(parent + kBoth)
                 : std::nullopt;
    };
    made.channels_.push_back(
        {link.name + " h2d", CapacityOf(link.h2d), above(kH2d)});
    made.channels_.push_back(
        {link.name + " d2h", CapacityOf(link.d2h), above(kD2h)});
    made.channels_.push_back(
        {link.name + " both ways", CapacityOf(link.both), above(kBoth)});
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

}  // namespace sluice::daemon::bandwidth
