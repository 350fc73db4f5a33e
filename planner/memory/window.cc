#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "planner/memory/arms.h"
#include "planner/memory/greedy.h"
#include "planner/memory/search.h"

namespace sluice::planner {
namespace {

// Numbers of items in the windows.
constexpr size_t kWindows[] = {250, 700, 1500};
constexpr int64_t kNodes = 200'000;
// No wider window is tried after this many placements around frozen windows.
// With 60,000 items such placements take long, and rarely help.
constexpr size_t kPlacements = 400'000;
// With more items than this, a window must hold the whole peak slot: around a
// part of it, placements take the time of ejection.
constexpr size_t kMaxItemsAroundParts = 100'000;

// The orders of GreedyOrders that place the items outside the window.
constexpr std::string_view kRestOrders[] = {"size", "lifetime", "area",
                                            "breadth"};

// Returns all items by distance from the peak slot, its own items first.
Order ByDistance(const Problem& problem) {
  std::vector<std::pair<int32_t, uint32_t>> distance;
  for (uint32_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    const int32_t before = problem.peak_slot - (item.upper - 1);
    const int32_t after = item.lower - problem.peak_slot;
    distance.emplace_back(std::max({before, after, 0}), k);
  }
  std::sort(distance.begin(), distance.end());
  Order order;
  for (const auto& [unused, k] : distance) order.push_back(k);
  return order;
}

Problem Subset(const Problem& problem, const Order& items, size_t count) {
  Problem window;
  window.unit = problem.unit;
  for (size_t i = 0; i < count; ++i) {
    window.items.push_back(problem.items[items[i]]);
  }
  CompressSlots(&window);
  return window;
}

std::vector<NamedOrder> RestOrders(const Problem& problem) {
  std::vector<NamedOrder> orders = GreedyOrders(problem);
  std::erase_if(orders, [](const NamedOrder& named) {
    return std::count(std::begin(kRestOrders), std::end(kRestOrders),
                      named.name) == 0;
  });
  return orders;
}

// Places the other items around the frozen ones by the best greedy order.
GreedyResult PlaceRest(const Problem& problem, std::vector<NamedOrder> orders,
                       const Frozen& frozen, int64_t peak, int64_t target,
                       const Expired& expired) {
  std::vector<uint8_t> is_frozen(problem.items.size(), 0);
  for (const uint32_t k : frozen.items) is_frozen[k] = 1;
  for (NamedOrder& named : orders) {
    std::erase_if(named.order, [&](uint32_t k) { return is_frozen[k] != 0; });
  }
  return RaceOrders(problem, orders, frozen, peak, target, expired);
}

}  // namespace

std::optional<Offsets> SolveWindow(const Problem& problem, int64_t peak,
                                   int64_t target, const Expired& expired) {
  const Order order = ByDistance(problem);
  size_t least = 0;
  if (order.size() > kMaxItemsAroundParts) {
    for (const Item& item : problem.items) least += problem.AtPeak(item);
  }
  std::vector<NamedOrder> rest_orders;
  std::optional<Offsets> best;
  size_t placements = 0;
  for (const size_t count : kWindows) {
    if (count > problem.items.size() || placements >= kPlacements ||
        peak <= target || expired()) {
      break;
    }
    if (count < least) continue;
    const Problem window = Subset(problem, order, count);
    const SearchResult found = Restarts(window).Ask(target, kNodes, expired);
    if (found.verdict != Verdict::kFits) continue;
    if (rest_orders.empty()) rest_orders = RestOrders(problem);
    GreedyResult rest = PlaceRest(
        problem, rest_orders,
        {Order(order.begin(), order.begin() + static_cast<ptrdiff_t>(count)),
         found.offsets},
        peak, target, expired);
    placements += 2 * rest_orders.size() * problem.items.size();
    if (rest.peak >= peak) continue;
    peak = rest.peak;
    best = std::move(rest.offsets);
  }
  return best;
}

}  // namespace sluice::planner
