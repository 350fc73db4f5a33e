#include "planner/memory/orders.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

namespace sluice::planner {
namespace {

// Sort keys of an item: ascending, compared in turn.
struct SortKey {
  double first = 0;
  double second = 0;
};

SortKey KeyOf(const std::string& name, const Item& item, int64_t breadth,
              int64_t neighbours) {
  const auto size = static_cast<double>(item.size);
  const auto birth = static_cast<double>(item.birth);
  const auto death = static_cast<double>(item.death);
  const double lifetime = death - birth;
  const double area = size * lifetime;
  const auto breadth_of = static_cast<double>(breadth);
  if (name == "size") return {-size, -lifetime};
  if (name == "lifetime") return {-lifetime, -size};
  if (name == "area") return {-area, -size};
  if (name == "birth") return {birth, -size};
  if (name == "death") return {-death, -size};
  if (name == "birth-lifetime") return {birth, -lifetime};
  if (name == "death-lifetime") return {-death, -lifetime};
  if (name == "breadth") return {-breadth_of, -size};
  if (name == "neighbours") return {-static_cast<double>(neighbours), -size};
  return {-area * lifetime, -size};  // squared-lifetime-area
}

const char* const kOrderNames[] = {
    "size",           "lifetime",  "area",  "squared-lifetime-area",
    "breadth",        "birth",     "death", "birth-lifetime",
    "death-lifetime", "neighbours"};

// The variants of the first kPairs orders come directly before their plain
// orders. The other variants come after all plain orders, so that a deadline
// does not prevent a plain order.
constexpr size_t kPairs = 3;

// Returns the items of the peak slot in the order of `inner`, then the rest by
// size.
NamedOrder PeakFirst(const Problem& problem, const NamedOrder& inner,
                     const Order& by_size) {
  const auto at_peak = [&](uint32_t k) {
    const Item& item = problem.items[k];
    return item.lower <= problem.peak_slot && problem.peak_slot < item.upper;
  };
  NamedOrder named{"peak-" + inner.name, {}};
  named.order.reserve(by_size.size());
  for (const uint32_t k : inner.order) {
    if (at_peak(k)) named.order.push_back(k);
  }
  for (const uint32_t k : by_size) {
    if (!at_peak(k)) named.order.push_back(k);
  }
  return named;
}

}  // namespace

std::vector<int64_t> NeighbourCounts(const Problem& problem) {
  // For each slot, the number of items born before it, and the number dead
  // before it.
  std::vector<int64_t> born(problem.live.size() + 1);
  std::vector<int64_t> dead(problem.live.size() + 1);
  for (const Item& item : problem.items) {
    ++born[static_cast<size_t>(item.lower) + 1];
    ++dead[static_cast<size_t>(item.upper)];
  }
  std::partial_sum(born.begin(), born.end(), born.begin());
  std::partial_sum(dead.begin(), dead.end(), dead.begin());
  std::vector<int64_t> counts;
  for (const Item& item : problem.items) {
    // Items born before its end, less those dead at its birth.
    counts.push_back(born[static_cast<size_t>(item.upper)] -
                     dead[static_cast<size_t>(item.lower)]);
  }
  return counts;
}

std::vector<NamedOrder> GreedyOrders(const Problem& problem) {
  const size_t n = problem.items.size();
  const RangeMax breadth(problem.live);
  const std::vector<int64_t> neighbours = NeighbourCounts(problem);
  std::vector<NamedOrder> all;
  std::vector<NamedOrder> last;
  Order by_size;
  for (const char* name : kOrderNames) {
    std::vector<SortKey> keys(n);
    for (size_t k = 0; k < n; ++k) {
      const Item& item = problem.items[k];
      keys[k] =
          KeyOf(name, item, breadth.Of(item.lower, item.upper), neighbours[k]);
    }
    NamedOrder plain{name, Order(n)};
    std::iota(plain.order.begin(), plain.order.end(), 0u);
    std::stable_sort(plain.order.begin(), plain.order.end(),
                     [&](uint32_t a, uint32_t b) {
                       return std::tie(keys[a].first, keys[a].second) <
                              std::tie(keys[b].first, keys[b].second);
                     });
    if (by_size.empty()) by_size = plain.order;
    (all.size() < 2 * kPairs ? all : last)
        .push_back(PeakFirst(problem, plain, by_size));
    all.push_back(std::move(plain));
  }
  std::move(last.begin(), last.end(), std::back_inserter(all));
  return all;
}

}  // namespace sluice::planner
