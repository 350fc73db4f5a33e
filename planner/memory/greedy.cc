#include "planner/memory/greedy.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "proto/base/mutex.h"

namespace sluice::planner {
namespace {

// With fewer items, a race ends before a thread has started.
constexpr size_t kMinItemsToPlaceInThreads = 4000;

// Runs all orders with both fits, in any number of threads. The result is that
// of one thread: the first run that meets the target, or else the run with the
// lowest peak, the first one on ties.
class Race {
 public:
  Race(const Problem& problem, const std::vector<NamedOrder>& orders,
       const Frozen& frozen, int64_t peak, int64_t target,
       const Expired& expired)
      : problem_(problem),
        orders_(orders),
        frozen_(frozen),
        target_(target),
        expired_(expired) {
    best_.peak = peak;
  }

  void Run() {
    Occupancy taken(problem_);
    while (const std::optional<Heat> heat = Next()) {
      taken.Clear();
      AddFrozen(&taken);
      auto offsets =
          PlaceInOrder(problem_, OrderOf(*heat).order, FitOf(*heat),
                       heat->limit, &taken, [&] { return Over(*heat); });
      if (offsets) Offer(*heat, *std::move(offsets));
    }
  }

  GreedyResult Take() {
    const MutexLock lock(mutex_);
    if (!best_.offsets.empty()) {
      for (size_t i = 0; i < frozen_.items.size(); ++i) {
        best_.offsets[frozen_.items[i]] = frozen_.offsets[i];
      }
    }
    return std::move(best_);
  }

 private:
  struct Heat {
    int index;
    int64_t limit;  // a peak above this is useless
  };

  void AddFrozen(Occupancy* taken) const {
    for (size_t i = 0; i < frozen_.items.size(); ++i) {
      const uint32_t k = frozen_.items[i];
      taken->Add(problem_.items[k], frozen_.offsets[i], k);
    }
  }

  const NamedOrder& OrderOf(const Heat& heat) const {
    return orders_[static_cast<size_t>(heat.index / 2)];
  }
  static Fit FitOf(const Heat& heat) {
    return heat.index % 2 == 0 ? Fit::kFirst : Fit::kBest;
  }

  std::optional<Heat> Next() {
    const MutexLock lock(mutex_);
    if (best_.peak <= target_ || expired_() ||
        next_ == 2 * static_cast<int>(orders_.size())) {
      return std::nullopt;
    }
    return Heat{next_++, best_.peak - 1};
  }

  // Returns whether an earlier run has met the target or the time is over.
  bool Over(const Heat& heat) {
    if (expired_()) return true;
    const MutexLock lock(mutex_);
    return best_.peak <= target_ && index_ < heat.index;
  }

  void Offer(const Heat& heat, Offsets offsets) {
    const int64_t peak = PeakOf(problem_, offsets);
    const MutexLock lock(mutex_);
    const bool earlier = heat.index < index_;
    const bool better = best_.peak <= target_ ? earlier && peak <= target_
                        : peak <= target_     ? true
                        : earlier             ? peak <= best_.peak
                                              : peak < best_.peak;
    if (!better) return;
    index_ = heat.index;
    best_.peak = peak;
    best_.offsets = std::move(offsets);
    best_.method = "greedy:" + OrderOf(heat).name +
                   (FitOf(heat) == Fit::kFirst ? ":first" : ":best");
  }

  const Problem& problem_;
  const std::vector<NamedOrder>& orders_;
  const Frozen& frozen_;
  const int64_t target_;
  const Expired& expired_;
  Mutex mutex_;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Index of the run that found best_; -1 if best_ was known before the race.
  int index_ ABSL_GUARDED_BY(mutex_) = -1;
  GreedyResult best_ ABSL_GUARDED_BY(mutex_);
};

using SortKey = std::pair<double, double>;  // ascending

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

// The peak-first variants of the first kPairs orders come directly before their
// plain orders. The other variants come last, so that a deadline skips them
// before it skips plain orders.
constexpr size_t kPairs = 3;

// Returns the peak slot's items in `inner`'s order, then the others by size.
NamedOrder PeakFirst(const Problem& problem, const NamedOrder& inner,
                     const Order& by_size) {
  NamedOrder named{"peak-" + inner.name, {}};
  named.order.reserve(by_size.size());
  for (const uint32_t k : inner.order) {
    if (problem.AtPeak(problem.items[k])) named.order.push_back(k);
  }
  for (const uint32_t k : by_size) {
    if (!problem.AtPeak(problem.items[k])) named.order.push_back(k);
  }
  return named;
}

}  // namespace

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
    std::ranges::stable_sort(plain.order, {},
                             [&](uint32_t item) { return keys[item]; });
    if (by_size.empty()) by_size = plain.order;
    (all.size() < 2 * kPairs ? all : last)
        .push_back(PeakFirst(problem, plain, by_size));
    all.push_back(std::move(plain));
  }
  std::move(last.begin(), last.end(), std::back_inserter(all));
  return all;
}

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const Expired& expired) {
  Offsets offsets(problem.items.size());
  size_t placed = 0;
  // The first items that all live in one slot, as in orders that begin with the
  // peak slot, are stacked without a search.
  bool stacked = taken->empty();
  int32_t from = 0;
  int32_t to = std::numeric_limits<int32_t>::max();
  int64_t top = 0;
  for (const uint32_t k : order) {
    if (++placed % 1024 == 0 && expired()) return std::nullopt;
    const Item& item = problem.items[k];
    from = std::max(from, item.lower);
    to = std::min(to, item.upper);
    stacked = stacked && from < to;
    const int64_t offset = stacked ? top : taken->Find(item, fit, limit);
    const int64_t end = offset + item.size;
    if (end > limit) return std::nullopt;
    taken->Add(item, offset, k);
    top = end;
    offsets[k] = offset;
  }
  return offsets;
}

GreedyResult RaceOrders(const Problem& problem,
                        const std::vector<NamedOrder>& orders,
                        const Frozen& frozen, int64_t peak, int64_t target,
                        const Expired& expired) {
  if (peak <= target) return {.peak = peak};
  Race race(problem, orders, frozen, peak, target, expired);
  const bool ahead = problem.items.size() >= kMinItemsToPlaceInThreads &&
                     std::thread::hardware_concurrency() > 1;
  std::thread second;
  if (ahead) second = std::thread([&race] { race.Run(); });
  race.Run();
  if (second.joinable()) second.join();
  return race.Take();
}

GreedyResult GreedyRace(const Problem& problem, int64_t peak, int64_t target,
                        const Expired& expired) {
  if (peak <= target || expired()) return {.peak = peak};
  return RaceOrders(problem, GreedyOrders(problem), {}, peak, target, expired);
}

}  // namespace sluice::planner
