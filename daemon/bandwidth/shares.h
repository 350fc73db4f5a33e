// The two ways to share out bandwidth on a forest of channels. Pure functions.
#pragma once

#include <limits>
#include <vector>

namespace sluice::daemon::bandwidth {

// Weighted max-min shares. All shares rise together, each as fast as its
// weight, until its want is met or a channel on its path is full; then it
// stands still and the others go on (progressive filling; Bertsekas and
// Gallager 1992, "Data Networks", 6.5.2). The result is max-min fair: a flow
// gets less than another of equal weight only if its demand is met or a channel
// on its path is full, and no bandwidth that a flow wants and could use is left
// over. A flow that had something before waits until the others have caught up.
struct Want {
  const std::vector<int>* path;  // channels; outlives the call
  double bytes;
  double weight = 1;
  double had = 0;  // bytes that already count as its share
};

struct FairShares {
  std::vector<double> bytes;  // by want
  // By channel: the level at which it became full; kUnlimited if it did not. A
  // level is bytes per weight, including what flows had.
  std::vector<double> full_at;
};

// Returns the fair shares of `wants`. `room` has the bytes of each channel
// (kUnlimited: no limit); on return, the bytes that remain.
FairShares ShareFairly(const std::vector<Want>& wants,
                       std::vector<double>& room);

// What a flow wants beyond its promise. A copy that a fair share would make
// late borrows from its own later fair share: a flow that is ahead waits until
// the others have caught up, and it may be ahead by at most `may` bytes. A rank
// that states false deadlines gets its share earlier, but not more of it.
struct LentCopy {
  const std::vector<int>* path;  // channels; outlives the call
  double excess = 0;             // bytes wanted
  double weight = 1;
  // Bytes of the first copy that were not granted yet, and the seconds until
  // they are needed (negative: overdue). 0 bytes: not stated.
  double needed = 0;
  double due = std::numeric_limits<double>::infinity();
  double promised_rate = 0;  // bytes per second from its promise
  double may = 0;            // most bytes that it may be lent
};

// Lends to late copies, in the order of their deadlines. Returns the bytes of
// each of `copies`, and subtracts them from `room` (bytes by channel in
// `window` seconds). A copy that is in time by its fair share is lent nothing.
std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
