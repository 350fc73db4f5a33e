// Lends bandwidth to copies that a fair share would make late.
//
// A rank states when compute needs the first copy of its queue. Most copies are
// in time by a fair share, and nothing changes for them. Late ones are served
// before fair shares, in the order of their deadlines. A late copy borrows what
// its own fair share brings later: a flow that is ahead waits until the others
// have caught up (fair_shares.h), and it is ahead by a bounded number of bytes.
// So a rank that lies about its deadlines shifts its share in time, but does
// not enlarge it, and promises, which are distributed before, are not affected.
//
// Thread safety: pure functions.
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
  double may = 0;            // limit of bytes before fair shares
};

// Returns bytes by copy, and subtracts them from `room` (bytes by channel in
// `window` seconds). A copy that is in time by its fair share of all `copies`
// gets nothing here.
std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
