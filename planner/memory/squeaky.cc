#include "planner/memory/squeaky.h"

#include <algorithm>
#include <limits>
#include <random>

namespace sluice::planner {
namespace {

// Rounds without a better placement before the best one's order is taken up
// again.
constexpr int kPatience = 30;

// Looks at an item, half a nanosecond each: a round of 60,000 items takes
// a second.
constexpr int64_t kVisits = 2'500'000'000;

}  // namespace

std::optional<Offsets> SqueakyWheel(const Problem& problem, const Order& order,
                                    Fit fit, int64_t peak, int64_t target,
                                    int64_t placements,
                                    const std::function<bool()>& expired) {
  const size_t n = problem.items.size();
  std::mt19937 random(1);
  std::optional<Offsets> best;
  std::vector<double> turn(n);  // items go by it, ascending
  for (size_t r = 0; r < n; ++r) turn[order[r]] = static_cast<double>(r);
  std::vector<double> best_turn = turn;
  Order now = order;
  Occupancy taken(problem);
  int stale = 0;
  for (; placements > 0 && taken.visited() < kVisits && peak > target &&
         !expired();
       placements -= static_cast<int64_t>(n)) {
    taken.Clear();
    auto offsets =
        PlaceInOrder(problem, now, fit, std::numeric_limits<int64_t>::max(),
                     &taken, expired);
    if (!offsets) break;
    const int64_t reached = PeakOf(problem, *offsets);
    // Those above what is aimed at go twice as early, give or take.
    const int64_t aim = std::max(target, std::min(peak, reached) - 1);
    if (reached < peak) {
      peak = reached;
      best_turn = turn;
      best = offsets;
      stale = 0;
    } else if (++stale >= kPatience) {
      turn = best_turn;
      stale = 0;
    }
    for (size_t k = 0; k < n; ++k) {
      if ((*offsets)[k] + problem.items[k].size <= aim) continue;
      turn[k] *= 0.25 + 0.5 * static_cast<double>(random() >> 8) / (1 << 24);
    }
    std::stable_sort(now.begin(), now.end(),
                     [&](uint32_t a, uint32_t b) { return turn[a] < turn[b]; });
  }
  return best;
}

}  // namespace sluice::planner
