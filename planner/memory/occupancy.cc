#include "planner/memory/occupancy.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kAny = Scan::kNone - 1;

// With fewer items, scanning all of them is faster than maintaining windows.
constexpr size_t kMinItemsInWindows = 8192;
// Windows are so wide that an item lies in at most this many on average. (With
// any width it lies in at least two.)
constexpr int64_t kMostWindowsAnItem = 4;
constexpr int32_t kLeastWidth = 256;
constexpr int32_t kWider = 8;  // factor of the width from one level to the next

// Return the first and the last window with a slot of [lower, upper).
int32_t FirstWindow(int32_t lower, int32_t width) {
  return std::max(lower / width - 1, 0);
}
int32_t LastWindow(int32_t upper, int32_t width) { return (upper - 1) / width; }

bool AreFew(const Problem& problem, int32_t width) {
  int64_t windows = 0;
  for (const Item& item : problem.items) {
    windows +=
        LastWindow(item.upper, width) + 1 - FirstWindow(item.lower, width);
  }
  return windows <=
         kMostWindowsAnItem * static_cast<int64_t>(problem.items.size());
}

// Calls visit(array) for each array of a block.
void ForEachArray(ScanBlock* block, auto visit) {
  visit(block->lower);
  visit(block->upper);
  visit(block->begin);
  visit(block->end);
  visit(block->item);
}

// Marks places from `count` on as alive in no slot.
void Truncate(ScanBlock* block, size_t count) {
  std::fill(block->lower + count, std::end(block->lower),
            std::numeric_limits<int32_t>::max());
  std::fill(block->upper + count, std::end(block->upper),
            std::numeric_limits<int32_t>::min());
  block->count = count;
}

}  // namespace

AddressList::AddressList() { Clear(); }

void AddressList::Clear() {
  for (auto& block : blocks_) spare_.push_back(std::move(block));
  blocks_.clear();
  if (spare_.empty()) spare_.push_back(std::make_unique<ScanBlock>());
  blocks_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  Truncate(blocks_[0].get(), 0);
  firsts_.assign(1, 0);
}

// Returns the index of the last block that may hold an item at `begin`.
size_t AddressList::BlockOf(int64_t begin) const {
  const auto after =
      std::upper_bound(firsts_.begin() + 1, firsts_.end(), begin);
  return static_cast<size_t>(after - firsts_.begin()) - 1;
}

void AddressList::Split(size_t at) {
  if (spare_.empty()) spare_.push_back(std::make_unique<ScanBlock>());
  auto upper = std::move(spare_.back());
  spare_.pop_back();
  ScanBlock* const lower = blocks_[at].get();
  const size_t half = lower->count / 2;
  const auto copy = [&](const auto& from, auto& to) {
    std::copy(from + half, from + lower->count, to);
  };
  copy(lower->lower, upper->lower);
  copy(lower->upper, upper->upper);
  copy(lower->begin, upper->begin);
  copy(lower->end, upper->end);
  copy(lower->item, upper->item);
  upper->count = lower->count - half;
  Truncate(upper.get(), upper->count);
  Truncate(lower, half);
  firsts_.insert(firsts_.begin() + static_cast<ptrdiff_t>(at) + 1,
                 upper->begin[0]);
  blocks_.insert(blocks_.begin() + static_cast<ptrdiff_t>(at) + 1,
                 std::move(upper));
}

void AddressList::Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
                      uint32_t item) {
  size_t at = BlockOf(begin);
  if (blocks_[at]->count == ScanBlock::kCapacity) {
    Split(at);
    if (begin >= firsts_[at + 1]) ++at;
  }
  ScanBlock* const block = blocks_[at].get();
  const auto place = static_cast<size_t>(
      std::upper_bound(block->begin, block->begin + block->count, begin) -
      block->begin);
  ForEachArray(block, [&](auto& array) {
    std::copy_backward(array + place, array + block->count,
                       array + block->count + 1);
  });
  block->lower[place] = lower;
  block->upper[place] = upper;
  block->begin[place] = begin;
  block->end[place] = end;
  block->item[place] = item;
  ++block->count;
}

void AddressList::Remove(int64_t begin, uint32_t item) {
  // Items at the same address may lie in several blocks.
  for (size_t at = BlockOf(begin);; --at) {
    ScanBlock* const block = blocks_[at].get();
    const auto [from, to] =
        std::equal_range(block->begin, block->begin + block->count, begin);
    for (auto place = static_cast<size_t>(from - block->begin);
         place < static_cast<size_t>(to - block->begin); ++place) {
      if (block->item[place] != item) continue;
      ForEachArray(block, [&](auto& array) {
        std::copy(array + place + 1, array + block->count, array + place);
      });
      Truncate(block, block->count - 1);
      return;
    }
    if (at == 0 || firsts_[at] < begin) return;
  }
}

int64_t AddressList::Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
                          int64_t limit, int64_t* visited) const {
  const auto scan_block = Scans()[0].scan;
  Scan scan{.lower = lower,
            .upper = upper,
            .size = size,
            .enough = fit == Fit::kFirst ? kAny : size};
  const int64_t highest =
      fit == Fit::kFirst ? std::max<int64_t>(limit, size) - size : kAny;
  for (const auto& block : blocks_) {
    *visited += static_cast<int64_t>(block->count);
    if (scan_block(*block, &scan)) return scan.offset;
    if (scan.reach > highest) return scan.reach;
  }
  return scan.gap == Scan::kNone ? scan.reach : scan.offset;
}

void AddressList::List(int32_t lower, int32_t upper,
                       std::vector<uint32_t>* items, int64_t* visited) const {
  const auto list_block = Scans()[0].list;
  size_t count = 0;
  for (const auto& block : blocks_) {
    *visited += static_cast<int64_t>(block->count);
    items->resize(count + ScanBlock::kCapacity + 16);
    count += list_block(*block, lower, upper, items->data() + count);
  }
  items->resize(count);
}

Occupancy::Occupancy(const Problem& problem) {
  if (problem.items.size() < kMinItemsInWindows) return;
  const auto slots = static_cast<int32_t>(problem.live.size());
  int32_t width = kLeastWidth;
  while (width < slots && !AreFew(problem, width)) width *= 2;
  // Wider windows would be useless: two windows of half of all slots hold every
  // item.
  for (; width < slots / 4; width *= kWider) {
    levels_.push_back(
        {width, std::vector<AddressList>(
                    static_cast<size_t>(LastWindow(slots, width)) + 1)});
  }
}

// Returns the list to scan for [lower, upper). A lifetime of at most `width`
// slots lies inside the window that has the lifetime's begin in its first half.
const AddressList& Occupancy::ListOf(int32_t lower, int32_t upper) const {
  for (const Windows& level : levels_) {
    if (upper - lower > level.width) continue;
    return level.lists[static_cast<size_t>(lower / level.width)];
  }
  return whole_;
}

template <typename Visitor>
void Occupancy::ForEachList(int32_t lower, int32_t upper, Visitor visit) {
  visit(whole_);
  for (Windows& level : levels_) {
    for (int32_t k = FirstWindow(lower, level.width);
         k <= LastWindow(upper, level.width); ++k) {
      visit(level.lists[static_cast<size_t>(k)]);
    }
  }
}

void Occupancy::Clear() {
  whole_.Clear();
  for (Windows& level : levels_) {
    for (AddressList& list : level.lists) list.Clear();
  }
}

void Occupancy::Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
                    uint32_t item) {
  ForEachList(lower, upper, [&](AddressList& list) {
    list.Add(lower, upper, begin, end, item);
  });
}

void Occupancy::Remove(const Item& lifetime, int64_t begin, uint32_t item) {
  ForEachList(lifetime.lower, lifetime.upper,
              [&](AddressList& list) { list.Remove(begin, item); });
}

int64_t Occupancy::Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
                        int64_t limit) const {
  return ListOf(lower, upper).Find(lower, upper, size, fit, limit, &visited_);
}

void Occupancy::List(int32_t lower, int32_t upper,
                     std::vector<uint32_t>* items) const {
  ListOf(lower, upper).List(lower, upper, items, &visited_);
}

}  // namespace sluice::planner
