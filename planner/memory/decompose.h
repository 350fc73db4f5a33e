// A problem in pieces that can be solved apart without loss (internal to the
// planner).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

struct Piece {
  Problem problem;
  std::vector<uint32_t> items;  // of the whole: problem.items[k] is items[k]
  int64_t base = 0;             // taken below it by items that were peeled
};

struct Pieces {
  std::vector<Piece> pieces;  // most live first
  Offsets offsets;            // of the whole; only those of peeled items hold
};

// Cuts at slots that no item crosses; then peels items that live throughout
// their piece: they lie at its bottom, where they block no other item. Repeats
// until neither is possible.
Pieces Decompose(const Problem& problem);

}  // namespace sluice::planner
