#include "daemon/service/bounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace sluice::daemon {

NodeConfig Bounded(NodeConfig node, const Shares& shares,
                   const Share& extents) {
  const Share& sessions = shares[static_cast<size_t>(Resource::kSessions)];
  const auto bound = [](int& limit, int64_t most) {
    limit = static_cast<int>(std::clamp<int64_t>(most, 1, limit));
  };
  bound(node.max_sessions, sessions.all);
  bound(node.max_half_open, sessions.all / 2);
  bound(node.max_half_open_each, sessions.each / 2);
  ExtentLimits& limits = node.extent_limits;
  const auto bound_size = [](size_t& limit, int64_t most) {
    const auto allowed = static_cast<size_t>(std::max<int64_t>(most, 1));
    limit = std::min(limit, allowed);
  };
  // Memory that is made ahead needs descriptors too.
  const int64_t ahead =
      std::ssize(node.hosts) * (node.host_ready / node.extent.host);
  bound_size(limits.all, extents.all - ahead);
  bound_size(limits.each, extents.each);
  const Share& waiting = shares[static_cast<size_t>(Resource::kWaiting)];
  bound_size(node.wait_limits.all, waiting.all);
  node.wait_limits.each =
      static_cast<size_t>(std::max<int64_t>(waiting.each, 1));
  const Share& kept = shares[static_cast<size_t>(Resource::kKeptProfiles)];
  node.profile_limit = {Bytes(kept.each), Bytes(kept.all)};
  // Half of all extents are divided among the possible ranks; 0 if that is less
  // than one for each.
  limits.per_rank = std::min<size_t>(
      limits.per_rank,
      limits.all / 2 /
          static_cast<size_t>(
              shares[static_cast<size_t>(Resource::kRanks)].all));
  return node;
}

}  // namespace sluice::daemon
