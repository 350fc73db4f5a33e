// What is lent to copies that a fair share would make late.
//
// A rank says of the copy in front of its queue by when compute needs it. Most
// copies are in time by a fair share, and then nothing is changed. One that is
// not goes before fair shares, of several the one that is due first. It is
// lent in advance what its own fair share brings later: a flow that was ahead
// waits until the others have caught up (fair_shares.h), and is ahead by a
// bounded number of bytes at most. So a rank that names what deadlines it likes
// shifts its share in time and makes it no larger, and promises, which are
// shared out before, are not touched.
//
// Thread safety: pure functions.
#pragma once

#include <limits>
#include <vector>

namespace sluice::daemon::bandwidth {

// What a flow wants beyond what it was promised.
struct LentCopy {
  const std::vector<int>* path;  // channels; outlives the call
  double excess = 0;             // bytes that it asks for
  double weight = 1;
  // Bytes of the copy in front that were not granted yet, and in how many
  // seconds they are needed (below 0: since then); 0: not told.
  double needed = 0;
  double due = std::numeric_limits<double>::infinity();
  double promised_rate = 0;  // bytes per second that it is to get anyway
  double may = 0;            // bytes that it may get before fair shares
};

// Bytes by copy, which are taken off `room` (bytes by channel, of `window`
// seconds). A copy that is in time by its fair share of all `copies` gets
// nothing here.
std::vector<double> ShareToLate(const std::vector<LentCopy>& copies,
                                double window, std::vector<double>& room);

}  // namespace sluice::daemon::bandwidth
