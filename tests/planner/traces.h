// Traces for planner tests: random, transformer-like, and from CSV files.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "absl/time/time.h"
#include "planner/memory/greedy.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// A time limit that no test's search reaches. Searches end by their limits of
// steps, so that a slow machine proves the same.
constexpr absl::Duration kNoClock = absl::Minutes(5);

// Places the items greedily into empty memory.
inline std::optional<Offsets> PlaceAlone(const Problem& problem,
                                         const Order& order, Fit fit,
                                         int64_t limit) {
  Occupancy taken(problem);
  return PlaceInOrder(problem, order, fit, limit, &taken, [] { return false; });
}

// Returns `n` buffers with lifetimes in [0, horizon) and sizes of 1 to
// `max_size` units of 64 bytes. A quarter of the sizes are 17 bytes less.
plan::Trace RandomTrace(std::mt19937& random, int n, int64_t horizon,
                        int64_t max_size);

// Returns the requests of a transformer layer's pass: `blocks` groups of
// long-lived outputs with short-lived scratch of mixed sizes. `jitter` > 0
// scales every size by a factor in [1 - jitter, 1 + jitter].
plan::Trace LayerTrace(std::mt19937& random, int blocks, double jitter);

// Returns a trace with an optimum of 18 units of 64 bytes, above its max-live
// bound of 17.
plan::Trace AboveMaxLive();

// Reads a MiniMalloc CSV (id,lower,upper,size) from tests/planner/data.
plan::Trace ReadCsv(const std::string& name);

}  // namespace sluice::planner
