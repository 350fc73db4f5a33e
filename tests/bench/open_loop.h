// Open-loop load on a daemon: pairs of a lease and its free fall due at a
// steady rate, whether or not the daemon keeps up. Each pair is timed from its
// due time, so a daemon that falls behind shows in every pair that had to wait.
#pragma once

#include <vector>

namespace sluice::bench {

struct OpenLoop {
  int sessions = 1;
  int pairs_per_second = 1000;  // over all sessions, round robin
  int pairs = 1000;
};

// Returns the milliseconds of each pair, without the first tenth, which warms
// up. `sockets` are sessions that have exchanged Hello. A session runs one pair
// at a time. A pair that falls due during another one waits, and the wait
// counts. A wrong answer ends the process.
std::vector<double> PairMillis(const OpenLoop& load,
                               const std::vector<int>& sockets);

}  // namespace sluice::bench
