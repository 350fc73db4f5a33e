// Counts the collectives of a step's optimizer.
#pragma once

#include <iterator>

#include "planner/stream/states.h"

namespace sluice::testing {

// Counts a reduce-scatter and an all-gather per even round, a reduce and a
// broadcast per bucket of other rounds, and the sum of the norm's squares.
inline int64_t OptimizerCollectives(const stream::ModelShape& model,
                                    int ranks) {
  if (ranks == 1) return 0;
  int64_t count = 1;
  for (const stream::Round& round : stream::CutRounds(model, ranks)) {
    count += 2 * (round.even ? 1 : std::ssize(round.buckets));
  }
  return count;
}

}  // namespace sluice::testing
