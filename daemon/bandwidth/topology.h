// The links of a node, as a forest: GPU, PCIe switch, root port, NUMA node.
//
// A copy loads every link from its GPU up to the root at the same time. In some
// links, such as the memory of a NUMA node, both directions share one capacity.
// So bandwidth is distributed by *channel*: one direction of a link, or both
// directions of a link together. Each channel has at most one channel above it,
// so a link above a shared link must be shared too. Immutable.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::daemon::bandwidth {

// The capacity of a channel without a limit.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The speed of one link in bytes per second; 0: not limited.
struct Link {
  std::string name;
  std::optional<int> parent;  // index in the same list
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // limit of both directions together
};

struct Channel {
  std::string name;              // "switch0 h2d", for people
  double capacity = kUnlimited;  // bytes per second
  std::optional<int> parent;
};

class Topology {
 public:
  // InvalidArgument: a parent does not exist, the links form a cycle, a speed
  // is negative, or a link with independent directions is above a shared one.
  static absl::StatusOr<Topology> Make(const std::vector<Link>& links);

  const std::vector<Channel>& channels() const { return channels_; }
  int channel_of(int link, int direction) const;  // kH2d, kD2h
  // Returns the channels from `channel` up to its root, both included.
  std::vector<int> PathOf(int channel) const;

 private:
  Topology() = default;

  std::vector<Channel> channels_;
};

}  // namespace sluice::daemon::bandwidth
