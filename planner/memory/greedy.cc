#include "planner/memory/greedy.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "proto/base/mutex.h"

namespace sluice::planner {
namespace {

// With fewer items, a race ends before a thread has started.
constexpr size_t kMinItemsToPlaceInThreads = 4000;

// Runs all orders with both fits. Any number of threads take the runs in
// sequence. The result is the same as with one thread: the first run that meets
// the target, or else the run with the lowest peak, the first one on ties.
class Race {
 public:
  Race(const Problem& problem, const std::vector<NamedOrder>& orders,
       const Frozen& frozen, int64_t peak, int64_t target,
       const std::function<bool()>& expired)
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
      const Item& item = problem_.items[k];
      taken->Add(item.lower, item.upper, frozen_.offsets[i],
                 frozen_.offsets[i] + item.size, k);
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
  const std::function<bool()>& expired_;
  Mutex mutex_;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Index of the run that found best_. -1: best_ is the plan known before the
  // race.
  int index_ ABSL_GUARDED_BY(mutex_) = -1;
  GreedyResult best_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const std::function<bool()>& expired) {
  Offsets offsets(problem.items.size());
  size_t placed = 0;
  // Items that all live in one slot are stacked without a search. In orders
  // that begin with the peak slot's items, the first items do.
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
    const int64_t offset =
        stacked ? top
                : taken->Find(item.lower, item.upper, item.size, fit, limit);
    const int64_t end = offset + item.size;
    if (end > limit) return std::nullopt;
    taken->Add(item.lower, item.upper, offset, end, k);
    top = end;
    offsets[k] = offset;
  }
  return offsets;
}

std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit) {
  Occupancy taken(problem);
  return PlaceInOrder(problem, order, fit, limit, &taken, [] { return false; });
}

GreedyResult RaceOrders(const Problem& problem,
                        const std::vector<NamedOrder>& orders,
                        const Frozen& frozen, int64_t peak, int64_t target,
                        const std::function<bool()>& expired) {
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
                        const std::function<bool()>& expired) {
  if (peak <= target || expired()) return {.peak = peak};
  return RaceOrders(problem, GreedyOrders(problem), {}, peak, target, expired);
}

}  // namespace sluice::planner
