// Weighted max-min shares on a forest of channels.
//
// All shares rise together, each as fast as its weight, until its want is met
// or a channel on its path is full; then it stands still and the others go on
// (progressive filling; Bertsekas and Gallager 1992, "Data Networks", 6.5.2).
// The result is max-min fair: a flow gets less than another of equal weight
// only if its demand is met or a channel on its path is full, and no bandwidth
// that a flow wants and could use is left over. A flow that had something
// before waits until the others have caught up.
//
// Thread safety: none needed; pure.
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
  // By channel: the level of shares, per weight and including what they had, at
  // which it was full. kUnlimited if it is not full.
  std::vector<double> full_at;
};

// `room` has the bytes of each channel (kUnlimited: no limit), and what remains
// of them on return.
FairShares ShareFairly(const std::vector<Want>& wants,
                       std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
