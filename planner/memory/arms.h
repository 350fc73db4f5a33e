// The arms of the portfolio besides the greedy race, the search and the MIP
// (internal to the planner). The heading above a function names its .cc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

// ---- decompose.cc ----------------------------------------------------------

struct Piece {
  Problem problem;
  // Item k of the piece is items[k] of the whole problem.
  std::vector<uint32_t> items;
  int64_t base = 0;  // units below the piece, taken by peeled items
};

struct Pieces {
  std::vector<Piece> pieces;  // descending in base + max_live
  Offsets offsets;  // by item of the problem; 0 unless the item is peeled
};

// Splits a problem into pieces that can be solved separately without losing an
// optimum. Cuts it at slots that no item crosses, and peels off items that live
// throughout their piece. Peeled items lie at the bottom of the piece, where
// they block no other item. Repeats cuts and peeling until neither is possible.
Pieces Decompose(const Problem& problem);

// ---- replay.cc, O(n log n) -------------------------------------------------

// Simulates an online allocator: best fit at every birth, merging of free
// neighbours at every death. If `expired` returns true, stacks all items on top
// of each other instead.
Offsets ReplayAllocator(const Problem& problem, const Expired& expired);

// How SweepFromPeak stacks the items of the peak slot.
enum class Stack {
  // Sorted by birth and divided into sqrt(n) groups, each sorted by death, so
  // that items that are born or die together leave one wide gap.
  kGroups,
  kBySize,
};

// Stacks the items of the peak slot and sweeps from there forward and backward
// in time, so that the plan has no gaps where memory is scarcest. A free range
// is chosen by the bytes it leaves over, and by how close its neighbours'
// deaths are to the item's. Each direction tries several weights of these two
// criteria and keeps its best result; the directions run in parallel. Returns
// nullopt if no plan is below `limit`. Ends at the first plan with a peak of at
// most `target`, which is at least max_live.
std::optional<Offsets> SweepFromPeak(const Problem& problem, Stack stack,
                                     int64_t limit, int64_t target,
                                     const Expired& expired);

// ---- window.cc, for traces that are too large for the search and have one
// decisive peak

// Places the items that live in a window of slots around the peak by canonical
// search within `target`, freezes them, and places the others greedily in
// several orders. Then tries wider windows. Ends at the first placement with a
// peak of at most `target`. Returns nullopt without a placement below `peak`.
std::optional<Offsets> SolveWindow(const Problem& problem, int64_t peak,
                                   int64_t target, const Expired& expired);

// ---- eject.cc, a large-neighbourhood search for traces of any size ---------

// Lowers the peak of `offsets`, a valid placement, towards `target` in steps,
// each with a slightly lower limit. A step removes the items that reach above
// the limit and places each one below it: in a free gap, or else where it must
// eject the items that are easiest to place again, which are placed next. Such
// a chain of moves is undone if it does not reduce the weight of the items
// without a place. An item that fits no free gap becomes more costly to eject.
// Ends at `target` or after about `visits` visits of items. Large problems use
// two threads, with the same result. Returns nullopt if no plan is better.
std::optional<Offsets> LowerByEjection(const Problem& problem, Offsets offsets,
                                       int64_t target, int64_t visits,
                                       const Expired& expired);

}  // namespace sluice::planner
