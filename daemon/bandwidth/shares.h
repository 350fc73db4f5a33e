// The two ways to share out bandwidth on a forest of channels. Pure functions.
#pragma once

#include <limits>
#include <vector>

namespace sluice::daemon::bandwidth {

// A flow's demand in weighted max-min shares. All shares rise together, in
// proportion to their weights. A share stops when its demand is met or a
// channel on its path is full, and the other shares go on (progressive filling;
// Bertsekas and Gallager 1992, "Data Networks", 6.5.2). The result is max-min
// fair: a flow gets less than another of equal weight only if its demand is met
// or a channel on its path is full, and no bandwidth that a flow wants and
// could use is left over. A flow that `had` bytes waits until others catch up.
struct Want {
  const std::vector<int>* path;  // channels; outlives the call
  double bytes;
  double weight = 1;
  double had = 0;  // bytes that already count as its share
};

struct FairShares {
  std::vector<double> bytes;  // in the order of the wants
  // The level at which each channel became full, in bytes per weight, including
  // what flows had; kUnlimited if the channel did not become full.
  std::vector<double> full_at;
};

// Returns the fair shares of `wants`. `room` has the bytes of each channel
// (kUnlimited: no limit); on return, the bytes that remain.
FairShares ShareFairly(const std::vector<Want>& wants,
                       std::vector<double>& room);

// What a flow wants beyond its promise. A copy that a fair share would make
// late borrows from its flow's later fair shares: the flow then waits until the
// others have caught up. A rank that states false deadlines gets its share
// earlier, but not more of it.
struct LentCopy {
  const std::vector<int>* path;  // channels; outlives the call
  double excess = 0;             // bytes wanted
  double weight = 1;
  // Bytes of the first copy that were not granted yet; 0: no deadline is known.
  double needed = 0;
  // Seconds until the deadline of `needed`; negative: overdue.
  double due = std::numeric_limits<double>::infinity();
  double promised_rate = 0;  // bytes per second from its promise
  double may = 0;            // most bytes that the copy may be lent
};

// Lends to late copies, in the order of their deadlines. Returns the bytes lent
// to each of `copies`, and subtracts them from `room` (bytes by channel in
// `window` seconds). A copy that is in time by its fair share is lent nothing.
std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
