// The links of a node, as a forest: GPU, PCIe switch, root port, NUMA node.
// Pure functions. `direction` is kH2d or kD2h (proto/base/grant_page.h).
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::daemon {

// A link and its speeds in bytes per second; 0: not known or not limited.
struct LinkSpeed {
  std::string name;
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
  // The link above this one, such as a PCIe switch's; empty: none.
  std::string parent;
  // Limit of both directions together, besides the limit of each.
  double both_bytes_per_second = 0;
  bool measured = false;  // speeds are from a kept measurement
};

// Returns the link's speed in one direction while the other direction is idle.
double SpeedOf(const LinkSpeed& link, int direction);
// Returns the link's speed per direction while both carry the same rate.
double SpeedBothWays(const LinkSpeed& link, int direction);
bool IsLimited(const LinkSpeed& link);

// Returns indexes into `links`: the link `name`, its parent, and so on; empty
// if no link has that name. The path ends at a missing or repeated parent.
std::vector<size_t> LinkPath(const std::vector<LinkSpeed>& links,
                             const std::string& name);
// Returns whether copies over the link `name` load the link `other`.
bool Loads(const std::vector<LinkSpeed>& links, const std::string& name,
           const std::string& other);

namespace bandwidth {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Channel {
  std::string name;              // "switch0 h2d", for people
  double capacity = kUnlimited;  // bytes per second
  std::optional<int> parent;
};

// A copy loads every link from its GPU up to the root at the same time. In some
// links, such as the memory of a NUMA node, both directions share one capacity.
// So bandwidth is distributed by *channel*: one direction of a link, or both
// directions of a link together. Each channel has at most one channel above it,
// so above a link that limits both directions together, no link may limit one
// direction alone. Immutable.
class Topology {
 public:
  // A link with a missing parent is a root. InvalidArgument: the links form a
  // cycle, a speed is infinite, or a link that limits one direction alone is
  // above a link that limits both together.
  static absl::StatusOr<Topology> Make(const std::vector<LinkSpeed>& links);

  const std::vector<Channel>& channels() const { return channels_; }
  int channel_of(int link, int direction) const;  // `link`: index in `links`
  // Returns the channels from `channel` up to its root, both included.
  std::vector<int> PathOf(int channel) const;

 private:
  Topology() = default;

  std::vector<Channel> channels_;
};

}  // namespace bandwidth
}  // namespace sluice::daemon
