#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/memory/arms.h"

namespace sluice::planner {
namespace {

struct ItemGroup {
  std::vector<uint32_t> items;  // sorted by Item::lower
  int64_t base;
};

// Cuts the group at slots that none of its items crosses.
std::vector<ItemGroup> Cut(const Problem& problem, const ItemGroup& group) {
  std::vector<ItemGroup> groups;
  int32_t end = -1;
  for (const uint32_t k : group.items) {
    const Item& item = problem.items[k];
    if (item.lower >= end) groups.push_back({{}, group.base});
    groups.back().items.push_back(k);
    end = std::max(end, item.upper);
  }
  return groups;
}

// Removes items that live throughout the group, and gives them offsets. Returns
// whether it removed any.
bool Peel(const Problem& problem, ItemGroup* group, Offsets* offsets) {
  int32_t from = problem.items[group->items[0]].lower;
  int32_t to = 0;
  for (const uint32_t k : group->items) {
    to = std::max(to, problem.items[k].upper);
  }
  std::vector<uint32_t> rest;
  for (const uint32_t k : group->items) {
    const Item& item = problem.items[k];
    if (item.lower == from && item.upper == to) {
      (*offsets)[k] = group->base;
      group->base += item.size;
    } else {
      rest.push_back(k);
    }
  }
  const bool peeled = rest.size() < group->items.size();
  group->items = std::move(rest);
  return peeled;
}

Piece PieceOf(const Problem& whole, ItemGroup group) {
  Piece piece{.items = std::move(group.items), .base = group.base};
  const int32_t from = whole.items[piece.items[0]].lower;
  for (const uint32_t k : piece.items) {
    Item item = whole.items[k];
    item.lower -= from;
    item.upper -= from;
    piece.problem.items.push_back(item);
  }
  piece.problem.unit = whole.unit;
  FinishProblem(&piece.problem);
  return piece;
}

}  // namespace

Pieces Decompose(const Problem& problem) {
  Pieces result;
  result.offsets.assign(problem.items.size(), 0);
  ItemGroup all{std::vector<uint32_t>(problem.items.size()), 0};
  std::iota(all.items.begin(), all.items.end(), 0u);
  std::ranges::stable_sort(all.items, {},
                           [&](uint32_t k) { return problem.items[k].lower; });
  std::vector<ItemGroup> open = {std::move(all)};
  while (!open.empty()) {
    const ItemGroup next = std::move(open.back());
    open.pop_back();
    if (next.items.empty()) continue;
    for (ItemGroup& group : Cut(problem, next)) {
      if (Peel(problem, &group, &result.offsets)) {
        open.push_back(std::move(group));
      } else {
        result.pieces.push_back(PieceOf(problem, std::move(group)));
      }
    }
  }
  std::ranges::stable_sort(
      result.pieces, std::greater(),
      [](const Piece& piece) { return piece.base + piece.problem.max_live; });
  return result;
}

}  // namespace sluice::planner
