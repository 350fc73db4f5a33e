#include "daemon/core/link_sharers.h"

#include <algorithm>

namespace sluice::daemon {

double WeightOf(const NodeConfig& config, const Principal& who) {
  const auto found = config.user_weights.find(who.uid);
  return found != config.user_weights.end() ? found->second : 1;
}

void LinkSharers::Count(const std::vector<size_t>& path, int user,
                        double weight, int more) {
  const auto number = static_cast<size_t>(user);
  for (const size_t i : path) {
    Link& link = links_[i];
    link.ranks_of.resize(std::max(link.ranks_of.size(), number + 1));
    link.ranks += more;
    link.ranks_of[number] += more;
    if (link.ranks_of[number] == (more > 0 ? 1 : 0)) {
      link.weight += more * weight;
    }
    if (link.ranks == 0) link.weight = 0;  // removes rounding errors
  }
}

double LinkSharers::PartOf(size_t link, int user, double weight) const {
  const Link& at = links_[link];
  const auto number = static_cast<size_t>(user);
  const int ranks = number < at.ranks_of.size() ? at.ranks_of[number] : 0;
  return ranks > 0 ? weight / at.weight / ranks : weight / (at.weight + weight);
}

}  // namespace sluice::daemon
