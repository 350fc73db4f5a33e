// Weighted max-min shares on a forest of channels.
//
// All shares rise together, each as fast as its weight, until its want is met
// or a channel on its path is full; then it stands still and the others go on
// (progressive filling; Bertsekas and Gallager 1992, "Data Networks", 6.5.2).
// The result is max-min fair: a flow gets less than another of equal weight
// only if its demand is met or a channel on its path is full, and no bandwidth
// that a flow wants and could use is left over. A flow that had something
// before waits until the others have caught up. Pure.
#pragma once

#include <vector>

namespace sluice::daemon::bandwidth {

struct Want {
  const std::vector<int>* path;  // channels; outlives the call
  double bytes = 0;
  double weight = 1;
  double had = 0;  // bytes that already count as its share
};

struct FairShares {
  std::vector<double> bytes;  // by want
  // By channel: the level at which it was full, kUnlimited if it is not. A
  // level is bytes per weight, including what flows had.
  std::vector<double> full_at;
};

// Returns the fair shares of `wants`. `room` has the bytes of each channel
// (kUnlimited: no limit); on return, the bytes that remain.
FairShares ShareFairly(const std::vector<Want>& wants,
                       std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
