// Shares of each link: by users' weights, and evenly among a user's ranks, so
// that more ranks give a user no larger share.
//
// Thread safety: none needed; values.
#pragma once

#include <cstddef>
#include <vector>

#include "daemon/core/node/types.h"

namespace sluice::daemon {

inline constexpr double kLeastWeight = 0.01;
inline constexpr double kMostWeight = 100;
// Returns the weight of a principal in fair shares.
double WeightOf(const NodeConfig& config, const Principal& who);

class LinkSharers {
 public:
  explicit LinkSharers(size_t links) : links_(links) {}

  // Adds `more` (1 or -1) ranks of `user` to each link of `path`. `user` is a
  // small number. The weight is the same for all ranks of a user.
  void Count(const std::vector<size_t>& path, int user, double weight,
             int more);
  int ranks(size_t link) const { return links_[link].ranks; }
  // Returns the share of `link` that a rank of the user has, or would have if
  // it were counted.
  double PartOf(size_t link, int user, double weight) const;

 private:
  struct Link {
    int ranks = 0;
    double weight = 0;  // sum of all users, each counted once
    std::vector<int> ranks_of;
  };
  std::vector<Link> links_;
};

}  // namespace sluice::daemon
