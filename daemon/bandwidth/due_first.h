// Lends bandwidth to copies that a fair share would make late, in the order of
// their deadlines. A late copy borrows from its own later fair share: a flow
// that is ahead waits until the others have caught up (fair_shares.h), and it
// may be ahead by a bounded number of bytes only. So a rank that states false
// deadlines gets its share earlier, but no more of it. Pure functions.
#pragma once

#include <limits>
#include <vector>

namespace sluice::daemon::bandwidth {

// What a flow wants beyond its promise.
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

// Returns the bytes lent to each copy, and subtracts them from `room` (bytes by
// channel in `window` seconds). A copy that is in time by its fair share of all
// `copies` is lent nothing.
std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
