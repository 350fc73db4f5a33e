#include "planner/memory/window.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/memory/greedy.h"
#include "planner/memory/restarts.h"

namespace sluice::planner {
namespace {

// The public LLM trace needed 638 items around its peak.
constexpr size_t kWindows[] = {250, 700, 1500};
constexpr int64_t kNodes = 200'000;

// Orders for the rest, of GreedyOrders.
constexpr std::string_view kRestOrders[] = {"size", "lifetime", "area",
                                            "breadth"};

// Items by how far from the peak slot they live; those alive at it first.
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

// The others around the frozen ones; the best of the greedy orders.
std::optional<Offsets> PlaceRest(const Problem& problem, const Order& frozen,
                                 const Offsets& at, int64_t peak,
                                 int64_t target,
                                 const std::function<bool()>& expired) {
  std::optional<Offsets> best;
  std::vector<uint8_t> is_frozen(problem.items.size(), 0);
  for (size_t i = 0; i < at.size(); ++i) is_frozen[frozen[i]] = 1;
  Occupancy taken;
  for (NamedOrder& named : GreedyOrders(problem)) {
    if (std::count(std::begin(kRestOrders), std::end(kRestOrders),
                   named.name) == 0) {
      continue;
    }
    std::erase_if(named.order, [&](uint32_t k) { return is_frozen[k] != 0; });
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      if (peak <= target || expired()) return best;
      taken.Clear();
      for (size_t i = 0; i < at.size(); ++i) {
        const Item& item = problem.items[frozen[i]];
        taken.Add(item.lower, item.upper, at[i], at[i] + item.size);
      }
      auto offsets =
          PlaceInOrder(problem, named.order, fit, peak - 1, &taken, expired);
      if (!offsets) continue;
      for (size_t i = 0; i < at.size(); ++i) (*offsets)[frozen[i]] = at[i];
      peak = PeakOf(problem, *offsets);
      best = std::move(offsets);
    }
  }
  return best;
}

}  // namespace

std::optional<Offsets> SolveWindow(const Problem& problem, int64_t peak,
                                   int64_t target,
                                   const std::function<bool()>& expired) {
  const Order order = ByDistance(problem);
  std::optional<Offsets> best;
  for (const size_t count : kWindows) {
    if (count > problem.items.size() || peak <= target || expired()) break;
    const Problem window = Subset(problem, order, count);
    const SearchResult found = Restarts(window).Ask(target, kNodes, expired);
    if (found.verdict != Verdict::kFits) continue;
    auto offsets =
        PlaceRest(problem, order, found.offsets, peak, target, expired);
    if (!offsets) continue;
    peak = PeakOf(problem, *offsets);
    best = std::move(offsets);
  }
  return best;
}

}  // namespace sluice::planner
