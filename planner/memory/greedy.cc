#include "planner/memory/greedy.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

using Less = std::function<bool(const Item&, const Item&)>;

struct Rule {
  const char* name;
  Less before;
};

// How many bytes are alive at most while an item lives: the "breadth" of
// TFLite's planner.
std::vector<int64_t> Breadths(const Problem& problem) {
  std::vector<int64_t> breadth;
  for (const Item& item : problem.items) {
    breadth.push_back(*std::max_element(problem.live.begin() + item.lower,
                                        problem.live.begin() + item.upper));
  }
  return breadth;
}

std::vector<Rule> Rules() {
  const auto longer = [](const Item& a, const Item& b) {
    return a.lifetime() > b.lifetime();
  };
  return {
      {"size",
       [](const Item& a, const Item& b) {
         return std::pair(-a.size, -a.lifetime()) <
                std::pair(-b.size, -b.lifetime());
       }},
      {"lifetime",
       [](const Item& a, const Item& b) {
         return std::pair(-a.lifetime(), -a.size) <
                std::pair(-b.lifetime(), -b.size);
       }},
      {"area",
       [](const Item& a, const Item& b) { return a.area() > b.area(); }},
      {"birth",
       [](const Item& a, const Item& b) {
         return std::pair(static_cast<int64_t>(a.lower), -a.size) <
                std::pair(static_cast<int64_t>(b.lower), -b.size);
       }},
      {"death",
       [](const Item& a, const Item& b) {
         return std::pair(-static_cast<int64_t>(a.upper), -a.size) <
                std::pair(-static_cast<int64_t>(b.upper), -b.size);
       }},
      {"birth-lifetime",
       [longer](const Item& a, const Item& b) {
         return a.lower != b.lower ? a.lower < b.lower : longer(a, b);
       }},
      {"death-lifetime",
       [longer](const Item& a, const Item& b) {
         return a.upper != b.upper ? a.upper > b.upper : longer(a, b);
       }},
      {"squared-lifetime-area",
       [](const Item& a, const Item& b) {
         return a.area() * a.lifetime() > b.area() * b.lifetime();
       }},
  };
}

Order Sorted(const Problem& problem, const Less& before) {
  Order order(problem.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return before(problem.items[a], problem.items[b]);
  });
  return order;
}

NamedOrder ByBreadth(const Problem& problem, const Order& by_size) {
  const std::vector<int64_t> breadth = Breadths(problem);
  NamedOrder named{"breadth", by_size};
  std::stable_sort(
      named.order.begin(), named.order.end(),
      [&](uint32_t a, uint32_t b) { return breadth[a] > breadth[b]; });
  return named;
}

// The items of the peak slot in the order of `inner`, then the rest by size.
NamedOrder PeakFirst(const Problem& problem, const NamedOrder& inner,
                     const Order& by_size) {
  const auto at_peak = [&](uint32_t k) {
    const Item& item = problem.items[k];
    return item.lower <= problem.peak_slot && problem.peak_slot < item.upper;
  };
  NamedOrder named{"peak-" + inner.name, {}};
  for (const uint32_t k : inner.order) {
    if (at_peak(k)) named.order.push_back(k);
  }
  for (const uint32_t k : by_size) {
    if (!at_peak(k)) named.order.push_back(k);
  }
  return named;
}

}  // namespace

int64_t Placer::Find(uint32_t index, Fit fit) const {
  const Item& item = problem_.items[index];
  int64_t reach = 0;  // everything below is taken or too small a gap
  int64_t best = -1;
  int64_t best_gap = kNoLimit;
  for (const Placed& p : placed_) {
    if (p.lower >= item.upper || item.lower >= p.upper) continue;
    const int64_t gap = p.offset - reach;
    if (gap >= item.size) {
      if (fit == Fit::kFirst) return reach;
      if (gap < best_gap) {
        best_gap = gap;
        best = reach;
      }
    }
    reach = std::max(reach, p.end);
  }
  return best >= 0 ? best : reach;
}

void Placer::Add(uint32_t index, int64_t offset) {
  const Item& item = problem_.items[index];
  const Placed placed{offset, offset + item.size, item.lower, item.upper};
  const auto at = std::upper_bound(
      placed_.begin(), placed_.end(), placed,
      [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  placed_.insert(at, placed);
}

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit) {
  Placer placer(problem);
  Offsets offsets(problem.items.size());
  for (const uint32_t index : order) {
    const int64_t offset = placer.Find(index, fit);
    if (offset + problem.items[index].size > limit) return std::nullopt;
    placer.Add(index, offset);
    offsets[index] = offset;
  }
  return offsets;
}

std::vector<NamedOrder> GreedyOrders(const Problem& problem) {
  std::vector<NamedOrder> plain;
  for (const Rule& rule : Rules()) {
    plain.push_back({rule.name, Sorted(problem, rule.before)});
  }
  const Order by_size = plain.front().order;
  plain.push_back(ByBreadth(problem, by_size));
  std::vector<NamedOrder> all = plain;
  for (const NamedOrder& inner : plain) {
    all.push_back(PeakFirst(problem, inner, by_size));
  }
  return all;
}

GreedyResult GreedyRace(const Problem& problem,
                        const std::function<bool()>& expired) {
  GreedyResult best;
  best.peak = kNoLimit;
  for (const NamedOrder& named : GreedyOrders(problem)) {
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      if (best.peak == problem.max_live) return best;
      if (best.peak != kNoLimit && expired()) return best;
      // Only a strictly better one is of use.
      const int64_t limit = best.peak == kNoLimit ? kNoLimit : best.peak - 1;
      auto offsets = PlaceInOrder(problem, named.order, fit, limit);
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
