// Finds the rank that is late, and where it is, from the pages of the ranks of
// one node.
//
// A rank is quiet while its page does not change. If one rank hangs, all are
// quiet, because they wait for it in a collective. A quiet rank is late if it
// is stopped, or not in the collective that the others have entered. If all
// ranks wait in the same collective, the first one is reported as waiting.
//
// Only time that the watchdog saw pass counts, at most a second between two
// calls of Look, so a suspended node or a stopped launcher makes no rank late.
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "client/train/watch/rank_page.h"

namespace sluice::train {

// Seconds; 0: never; negative: derived from the duration of a step.
struct WatchLimits {
  double late_after_s = -1;
  double end_after_s = -1;
};

// These return the limits for steps of `expected_s` (0: unknown).
double LateAfter(const WatchLimits& limits, double expected_s);
double EndAfter(const WatchLimits& limits, double expected_s);

struct WatchedRank {
  int rank = 0;
  int pid = 0;
  bool ended = false;
  bool stopped = false;  // by a signal or a debugger
  RankSample sample;
};

struct WatchVerdict {
  std::vector<std::string> notes;  // to be printed now
  std::string end;                 // if not empty: the run must end, and why
};

class Watchdog {
 public:
  // If `alone`, only one rank is watched; another rank may be the late one.
  Watchdog(const WatchLimits& limits, bool alone)
      : limits_(limits), alone_(alone) {}

  // Call it at least once a second, with the same ranks in the same order.
  WatchVerdict Look(const std::vector<WatchedRank>& ranks, double now_s);

 private:
  struct Seen {
    uint64_t events = 0;
    double quiet_s = 0, stopped_s = 0;
    double say_next_s = 0;  // least quiet_s of the next note; 0: no note yet
    bool stop_said = false;
  };
  void Update(const WatchedRank& rank, double passed_s, Seen& seen,
              WatchVerdict& verdict) const;
  void Judge(const std::vector<WatchedRank>& ranks, size_t i, bool waits,
             WatchVerdict& verdict);
  std::string Accuse(const WatchedRank& rank, const Seen& seen,
                     bool waits) const;

  const WatchLimits limits_;
  const bool alone_;
  std::vector<Seen> seen_;
  double last_look_s_ = 0;
};

}  // namespace sluice::train
