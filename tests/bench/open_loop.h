// Load on a daemon that does not wait for it: pairs of a lease and its free
// fall due at a steady rate, and each is timed from when it was due, so that a
// daemon that falls behind shows in every pair that had to wait for it.
#pragma once

#include <vector>

namespace sluice::bench {

struct OpenLoop {
  int sessions = 1;
  int pairs_per_second = 1000;  // of all sessions together, in turns
  int pairs = 1000;
};

// The milliseconds of each pair but the first tenth, which warms up, on
// sessions that said Hello. A session has one pair under way at a time; one
// that is due meanwhile waits, and its time runs. Any answer but the right one
// ends the process.
std::vector<double> PairMillis(const OpenLoop& load,
                               const std::vector<int>& sockets);

}  // namespace sluice::bench
