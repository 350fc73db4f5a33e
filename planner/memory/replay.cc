#include "planner/memory/replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace sluice::planner {
namespace {

class FreeList {
 public:
  int64_t Take(int64_t size) {
    const auto fit = by_size_.lower_bound({size, 0});
    if (fit == by_size_.end()) {
      const int64_t at = top_;
      top_ += size;
      return at;
    }
    const auto [length, begin] = *fit;
    Remove(begin, length);
    if (length > size) Insert(begin + size, length - size);
    return begin;
  }

  void Give(int64_t begin, int64_t size) {
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
  void Insert(int64_t begin, int64_t size) {
    by_address_.emplace(begin, size);
    by_size_.emplace(size, begin);
  }
  void Remove(int64_t begin, int64_t size) {
    by_address_.erase(begin);
    by_size_.erase({size, begin});
  }

  std::map<int64_t, int64_t> by_address_;  // begin to size
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t top_ = 0;  // free from here on
};

}  // namespace

Offsets ReplayAllocator(const Problem& problem) {
  const std::vector<Item>& items = problem.items;
  std::vector<uint32_t> births(items.size());
  std::iota(births.begin(), births.end(), 0u);
  std::vector<uint32_t> deaths = births;
  std::stable_sort(births.begin(), births.end(), [&](uint32_t a, uint32_t b) {
    return items[a].lower < items[b].lower;
  });
  std::stable_sort(deaths.begin(), deaths.end(), [&](uint32_t a, uint32_t b) {
    return items[a].upper < items[b].upper;
  });
  FreeList free;
  Offsets offsets(items.size());
  auto dead = deaths.begin();
  for (const uint32_t k : births) {
    for (; items[*dead].upper <= items[k].lower; ++dead) {
      free.Give(offsets[*dead], items[*dead].size);
    }
    offsets[k] = free.Take(items[k].size);
  }
  return offsets;
}

}  // namespace sluice::planner
