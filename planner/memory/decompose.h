// Splits a problem into pieces that can be solved separately without loss
// (internal to the planner).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

struct Piece {
  Problem problem;
  std::vector<uint32_t> items;  // piece item k is items[k] of the whole problem
  int64_t base = 0;             // units below the piece, held by peeled items
};

struct Pieces {
  std::vector<Piece> pieces;  // most live first
  Offsets offsets;            // of the whole problem; set for peeled items only
};

// Cuts at slots that no item crosses. Then peels items that live throughout
// their piece: at its bottom they block no other item. Repeats until neither is
// possible.
Pieces Decompose(const Problem& problem);

}  // namespace sluice::planner
