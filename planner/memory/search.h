// Canonical search (internal to the planner): decides whether a problem fits
// a capacity. After MiniMalloc (Moffitt, ASPLOS'23, DOI
// 10.1145/3623278.3624752), written anew; README.md has the argument why
// each cut is sound.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "planner/memory/problem.h"

namespace sluice::planner {

struct SearchResult {
  enum class Verdict {
    kFits,        // offsets hold
    kImpossible,  // proved: no placement has a peak <= capacity
    kUnknown,     // the budget ended
  };
  Verdict verdict = Verdict::kUnknown;
  Offsets offsets;
  std::string order;  // of the run that decided
  int64_t nodes = 0;  // spent
};

// Runs several static orders in turn with growing budgets, `max_nodes` nodes
// in all. `expired` is asked every few hundred nodes. Memory: one entry a pair
// of items that live together.
SearchResult SearchPlacement(const Problem& problem, int64_t capacity,
                             int64_t max_nodes,
                             const std::function<bool()>& expired);

}  // namespace sluice::planner
