// Open-loop load on a daemon: pairs of requests, `lease` and `free`, fall due
// at a steady rate, whether or not the daemon keeps up. Each pair is timed from
// its due time, so the times grow if the daemon falls behind.
#pragma once

#include <vector>

namespace sluice::bench {

struct OpenLoop {
  int sessions = 1;
  int pairs_per_second = 1000;  // over all sessions, round robin
  int pairs = 1000;
};

// Returns the milliseconds of each pair, without the first tenth of the pairs,
// which warm up. `sockets` are sessions that have exchanged Hello. A session
// runs one pair at a time. A pair that falls due during another of its session
// waits, and the wait counts. A wrong answer ends the process.
std::vector<double> PairMillis(const OpenLoop& load,
                               const std::vector<int>& sockets);

}  // namespace sluice::bench
