#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "planner/memory/arms.h"

namespace sluice::planner {
namespace {

// An item in a sweep's time, which runs backward in a backward sweep.
struct Stay {
  int32_t begin;
  int32_t end;
  int64_t birth;  // in the trace's time: orders births within one slot
  uint32_t item;
};

// Chooses a free range: among the `candidates` smallest ranges that are large
// enough, the one with the least sum of `left_over` x (remainder / size) and
// the mismatch of deaths. 0 candidates stand for best fit.
struct Rule {
  int candidates = 0;
  double left_over = 0;
};
// More candidates are better if sizes vary widely, fewer if they are alike.
constexpr Rule kRules[] = {{8, 3}, {16, 3}, {32, 1}, {4, 1}, {2, 1}, {1, 1}};

class FreeList {
 public:
  explicit FreeList(const Rule& rule) : rule_(rule) {}

  // Marks [begin, begin + size), which must not overlap a free range, as taken.
  void Hold(int64_t begin, int64_t size, int32_t death) {
    top_ = std::max(top_, begin + size);
    Note(begin, size, death);
  }

  int64_t Take(int64_t size, int32_t now, int32_t death) {
    const auto [length, begin, high] = Choose(size, now, death);
    if (length == 0) {
      Hold(begin, size, death);
      return begin;
    }
    Remove(begin, length);
    const int64_t at = high ? begin + length - size : begin;
    if (length > size) Insert(high ? begin : at + size, length - size);
    Note(at, size, death);
    return at;
  }

  void Give(int64_t begin, int64_t size) {
    if (rule_.candidates > 0) {
      below_.erase(begin + size);
      above_.erase(begin);
    }
    auto next = by_address_.lower_bound(begin);
    if (next != by_address_.end() && next->first == begin + size) {
      size += next->second;
      next = std::next(next);
      Remove(std::prev(next)->first, std::prev(next)->second);
    }
    if (next != by_address_.begin()) {
      const auto [before, length] = *std::prev(next);
      if (before + length == begin) {
        Remove(before, length);
        begin = before;
        size += length;
      }
    }
    if (begin + size == top_) {
      top_ = begin;
    } else {
      Insert(begin, size);
    }
  }

 private:
  // A free range, and whether the item goes to its high end. Length 0 stands
  // for the free space from top_ on.
  struct Choice {
    int64_t length = 0;
    int64_t begin;
    bool high = false;
  };

  Choice Choose(int64_t size, int32_t now, int32_t death) const {
    Choice best{.begin = top_};
    double least = std::numeric_limits<double>::infinity();
    // Difference of remaining lifetimes in octaves, at most four, scaled to 1.
    const auto mismatch = [&](const auto& neighbours, int64_t address) {
      const auto at = neighbours.find(address);
      if (at == neighbours.end()) return 1.0;
      const double ratio = (at->second - now + 1.0) / (death - now + 1.0);
      return std::min(1.0, std::fabs(std::log2(ratio)) / 4);
    };
    int left = std::max(rule_.candidates, 1);
    for (auto fit = by_size_.lower_bound({size, 0});
         fit != by_size_.end() && left > 0; ++fit, --left) {
      const auto [length, begin] = *fit;
      if (rule_.candidates == 0) return {length, begin};
      const double low = mismatch(below_, begin);
      const double high = mismatch(above_, begin + length);
      const double cost = rule_.left_over * static_cast<double>(length - size) /
                              static_cast<double>(size) +
                          std::min(low, high);
      if (cost >= least) continue;
      least = cost;
      best = {length, begin, high < low};
    }
    return best;
  }

  void Note(int64_t begin, int64_t size, int32_t death) {
    if (rule_.candidates == 0) return;
    below_[begin + size] = death;
    above_[begin] = death;
  }
  void Insert(int64_t begin, int64_t size) {
    by_address_.emplace(begin, size);
    by_size_.emplace(size, begin);
  }
  void Remove(int64_t begin, int64_t size) {
    by_address_.erase(begin);
    by_size_.erase({size, begin});
  }

  const Rule rule_;
  std::map<int64_t, int64_t> by_address_;  // begin to size
  std::set<std::pair<int64_t, int64_t>> by_size_;
  // Deaths of the items that end (below_) and begin (above_) at an address.
  std::unordered_map<int64_t, int32_t> below_;
  std::unordered_map<int64_t, int32_t> above_;
  int64_t top_ = 0;  // everything from here on is free
};

// Places the items that begin after `start` around the items alive in `start`,
// which have offsets. Returns the highest end of the placed items, or nullopt
// if it is above `limit` or the time is over.
std::optional<int64_t> Sweep(const Problem& problem, bool backward,
                             int32_t start, const Rule& rule, int64_t limit,
                             const Expired& expired, Offsets* offsets) {
  std::vector<Stay> births;
  std::vector<Stay> deaths;
  FreeList free(rule);
  int64_t peak = 0;
  for (uint32_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    const Stay stay = backward ? Stay{-item.upper, -item.lower, -item.death, k}
                               : Stay{item.lower, item.upper, item.birth, k};
    if (stay.end <= start) continue;
    deaths.push_back(stay);
    if (stay.begin > start) {
      births.push_back(stay);
    } else {
      free.Hold((*offsets)[k], item.size, stay.end);
    }
  }
  std::ranges::sort(births, {}, [](const Stay& stay) {
    return std::tie(stay.begin, stay.birth, stay.item);
  });
  std::ranges::sort(deaths, {}, [](const Stay& stay) {
    return std::tie(stay.end, stay.item);
  });
  auto dead = deaths.begin();
  size_t placed = 0;
  for (const Stay& birth : births) {
    if (++placed % 1024 == 0 && expired()) return std::nullopt;
    for (; dead->end <= birth.begin; ++dead) {
      free.Give((*offsets)[dead->item], problem.items[dead->item].size);
    }
    const int64_t size = problem.items[birth.item].size;
    const int64_t at = free.Take(size, birth.begin, birth.end);
    if (at + size > limit) return std::nullopt;
    (*offsets)[birth.item] = at;
    peak = std::max(peak, at + size);
  }
  return peak;
}

std::vector<uint32_t> StackOf(const Problem& problem, Stack stack) {
  const std::vector<Item>& items = problem.items;
  std::vector<uint32_t> order;
  for (uint32_t k = 0; k < items.size(); ++k) {
    if (problem.AtPeak(items[k])) order.push_back(k);
  }
  const auto sort = [&](size_t from, size_t to, auto key) {
    std::ranges::stable_sort(std::span(order).subspan(from, to - from), {},
                             [&](uint32_t k) { return key(items[k]); });
  };
  if (stack == Stack::kBySize) {
    sort(0, order.size(), [](const Item& item) { return -item.size; });
    return order;
  }
  sort(0, order.size(), [](const Item& item) { return item.lower; });
  const auto group = static_cast<size_t>(
      std::ceil(std::sqrt(static_cast<double>(order.size()))));
  for (size_t from = 0; from < order.size(); from += group) {
    sort(from, std::min(from + group, order.size()),
         [](const Item& item) { return item.upper; });
  }
  return order;
}

}  // namespace

Offsets ReplayAllocator(const Problem& problem, const Expired& expired) {
  Offsets offsets(problem.items.size());
  if (Sweep(problem, /*backward=*/false, /*start=*/-1, {},
            std::numeric_limits<int64_t>::max(), expired, &offsets)) {
    return offsets;
  }
  int64_t top = 0;
  for (size_t k = 0; k < offsets.size(); ++k) {
    offsets[k] = std::exchange(top, top + problem.items[k].size);
  }
  return offsets;
}

std::optional<Offsets> SweepFromPeak(const Problem& problem, Stack stack,
                                     int64_t limit, int64_t target,
                                     const Expired& expired) {
  const int32_t peak = problem.peak_slot;
  Offsets stacked(problem.items.size());
  int64_t top = 0;
  for (const uint32_t k : StackOf(problem, stack)) {
    stacked[k] = std::exchange(top, top + problem.items[k].size);
  }
  // The two halves share only the stack, so they are independent.
  const auto best_half = [&](bool backward, Offsets* best) {
    int64_t least = limit;
    for (const Rule& rule : kRules) {
      if (least <= target || expired()) return;
      Offsets offsets = stacked;
      const auto found = Sweep(problem, backward, backward ? -peak - 1 : peak,
                               rule, least - 1, expired, &offsets);
      if (!found) continue;
      least = *found;
      *best = std::move(offsets);
    }
  };
  Offsets before;
  Offsets after;
  std::thread ahead([&] { best_half(/*backward=*/true, &before); });
  best_half(/*backward=*/false, &after);
  ahead.join();
  if (before.empty() || after.empty()) return std::nullopt;
  for (size_t k = 0; k < after.size(); ++k) {
    if (problem.items[k].upper <= peak) after[k] = before[k];
  }
  return after;
}

}  // namespace sluice::planner
