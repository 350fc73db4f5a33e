// Greedy placement (internal to the planner): buffers one by one, each into
// a gap left by those placed before it that live together with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

enum class Fit {
  kFirst,  // the lowest gap that is large enough
  kBest,   // the smallest such gap, the lowest on ties
};

// The order in which items are placed; a permutation of their indices.
using Order = std::vector<uint32_t>;

// Places items in `order`. Gives up (nullopt) as soon as an item would end
// above `limit`, since the caller has something as good already.
// O(n^2) time, O(n) memory.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit);

// Where item `item` goes in a world of placed items; used by the searches
// that place a few items at a time.
class Placer {
 public:
  explicit Placer(const Problem& problem) : problem_(problem) {}

  // Lowest (or best) offset for the item; then, with Add, it is placed.
  int64_t Find(uint32_t item, Fit fit) const;
  void Add(uint32_t item, int64_t offset);
  void Clear() { placed_.clear(); }

 private:
  struct Placed {
    int64_t offset;
    int64_t end;
    int32_t lower;
    int32_t upper;
  };
  const Problem& problem_;
  std::vector<Placed> placed_;  // by offset
};

struct NamedOrder {
  std::string name;
  Order order;
};

// Nine plain orders (size, lifetime, area, birth, …), then the same family
// with the buffers alive at the peak slot first.
std::vector<NamedOrder> GreedyOrders(const Problem& problem);

struct GreedyResult {
  Offsets offsets;
  int64_t peak = 0;
  std::string method;  // "greedy:size:first"
};

// Runs every order with both fits, in listed order, and keeps the best; stops
// at the first that meets max_live, or when `expired` says so (after at least
// one whole run).
GreedyResult GreedyRace(const Problem& problem,
                        const std::function<bool()>& expired);

}  // namespace sluice::planner
