// Weighted max-min shares on a forest of channels.
//
// All shares rise together, each as fast as its weight, until its want is met
// or a channel on its path is full; then it stands still and the others go on
// (progressive filling; Bertsekas and Gallager 1992, "Data Networks", 6.5.2).
// So nobody has less than another of equal weight unless it wants no more or a
// full channel of its own stops it, and nothing is left over that anybody
// wants and could be carried.
//
// Thread safety: none needed; pure.
#pragma once

#include <vector>

namespace sluice::daemon::bandwidth {

struct Want {
  const std::vector<int>* path;  // channels; outlives the call
  double bytes = 0;
  double weight = 1;
};

// The share of each want, in bytes, and what is left of `room` after them
// (bytes by channel; without limit: kUnlimited).
std::vector<double> FairShares(const std::vector<Want>& wants,
                               std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
