// The links of a node, as a forest: GPU, PCIe switch, root port, NUMA node.
//
// A copy loads every link from its GPU up to the root at the same time. Most
// links carry their two directions apart; some carry both by the same means
// (the memory of a NUMA node), and there a prefetch and an offload load each
// other. So what is shared out are *channels*: one direction of a link, or both
// directions of one. Each channel has at most one above it, which is why a link
// above a shared one must be shared itself.
//
// Thread safety: immutable.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::daemon::bandwidth {

// What a channel without a limit carries.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Bytes per second; 0: not limited.
struct Link {
  std::string name;
  std::optional<int> parent;  // an index into the same list
  double h2d = 0;
  double d2h = 0;
  double both = 0;  // of both directions together
};

struct Channel {
  std::string name;              // "switch0 h2d", for people
  double capacity = kUnlimited;  // bytes per second
  std::optional<int> parent;
};

class Topology {
 public:
  // InvalidArgument: a parent that is not there, a circle, a speed below 0, or
  // directions that go apart again above a link that both load.
  static absl::StatusOr<Topology> Make(const std::vector<Link>& links);

  const std::vector<Channel>& channels() const { return channels_; }
  int channel_of(int link, int direction) const;  // kH2d, kD2h
  // From `channel` up to its root, both included.
  std::vector<int> PathOf(int channel) const;

 private:
  Topology() = default;

  std::vector<Channel> channels_;
};

}  // namespace sluice::daemon::bandwidth
