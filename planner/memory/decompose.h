// Splits a problem into pieces that can be solved separately without losing an
// optimum (internal to the planner).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

struct Piece {
  Problem problem;
  // Item k of the piece is items[k] of the problem.
  std::vector<uint32_t> items;
  int64_t base = 0;  // units below the piece, taken by peeled items
};

struct Pieces {
  std::vector<Piece> pieces;  // the piece with the most live units first
  Offsets offsets;  // by item of the problem; set only for peeled items
};

// Cuts the problem at slots that no item crosses. Then peels off items that
// live throughout their piece: at the bottom of the piece they block no other
// item. Repeats both until neither is possible.
Pieces Decompose(const Problem& problem);

}  // namespace sluice::planner
