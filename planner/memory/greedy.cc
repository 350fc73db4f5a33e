#include "planner/memory/greedy.h"

#include <limits>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

}  // namespace

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const std::function<bool()>& expired) {
  Offsets offsets(problem.items.size());
  size_t placed = 0;
  for (const uint32_t k : order) {
    if (++placed % 1024 == 0 && expired()) return std::nullopt;
    const Item& item = problem.items[k];
    const int64_t offset = taken->Find(item.lower, item.upper, item.size, fit);
    const int64_t end = offset + item.size;
    if (end > limit) return std::nullopt;
    taken->Add(item.lower, item.upper, offset, end);
    offsets[k] = offset;
  }
  return offsets;
}

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit) {
  Occupancy taken(problem.live.size());
  return PlaceInOrder(problem, order, fit, limit, &taken, [] { return false; });
}

GreedyResult GreedyRace(const Problem& problem, int64_t peak, int64_t target,
                        const std::function<bool()>& expired) {
  GreedyResult best;
  best.peak = peak;
  if (peak <= target) return best;
  Occupancy taken(problem.live.size());
  for (const NamedOrder& named : GreedyOrders(problem)) {
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      if (best.peak <= target || expired()) return best;
      taken.Clear();
      // Only a strictly better one is of use.
      auto offsets = PlaceInOrder(problem, named.order, fit, best.peak - 1,
                                  &taken, expired);
      if (!offsets) continue;
      best.peak = PeakOf(problem, *offsets);
      best.offsets = *std::move(offsets);
      best.method =
          "greedy:" + named.name + (fit == Fit::kFirst ? ":first" : ":best");
    }
  }
  return best;
}

}  // namespace sluice::planner
