#include "planner/memory/occupancy.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::planner {
namespace {

constexpr int64_t kAny = Scan::kNone - 1;

// With fewer items, scanning all of them is faster than maintaining windows.
constexpr size_t kMinItemsInWindows = 8192;
// Windows are so wide that an item lies in at most this many on average.
constexpr int64_t kMostWindowsAnItem = 4;
constexpr int32_t kLeastWidth = 256;
constexpr int32_t kWider = 8;  // factor of the width from one level to the next

// Return the first and the last window with a slot of the item.
int32_t FirstWindow(const Item& item, int32_t width) {
  return std::max(item.lower / width - 1, 0);
}
int32_t LastWindow(const Item& item, int32_t width) {
  return (item.upper - 1) / width;
}

bool AreFew(const Problem& problem, int32_t width) {
  int64_t windows = 0;
  for (const Item& item : problem.items) {
    windows += LastWindow(item, width) + 1 - FirstWindow(item, width);
  }
  return windows <=
         kMostWindowsAnItem * static_cast<int64_t>(problem.items.size());
}

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

void AddressList::Add(const Item& item, int64_t at, uint32_t k) {
  size_t b = BlockOf(at);
  if (blocks_[b]->count == ScanBlock::kCapacity) {
    Split(b);
    if (at >= firsts_[b + 1]) ++b;
  }
  ScanBlock* const block = blocks_[b].get();
  const auto place = static_cast<size_t>(
      std::upper_bound(block->begin, block->begin + block->count, at) -
      block->begin);
  ForEachArray(block, [&](auto& array) {
    std::copy_backward(array + place, array + block->count,
                       array + block->count + 1);
  });
  block->lower[place] = item.lower;
  block->upper[place] = item.upper;
  block->begin[place] = at;
  block->end[place] = at + item.size;
  block->item[place] = k;
  ++block->count;
}

void AddressList::Remove(int64_t at, uint32_t k) {
  // Items at the same address may lie in several blocks.
  for (size_t b = BlockOf(at);; --b) {
    ScanBlock* const block = blocks_[b].get();
    const auto [from, to] =
        std::equal_range(block->begin, block->begin + block->count, at);
    for (auto place = static_cast<size_t>(from - block->begin);
         place < static_cast<size_t>(to - block->begin); ++place) {
      if (block->item[place] != k) continue;
      ForEachArray(block, [&](auto& array) {
        std::copy(array + place + 1, array + block->count, array + place);
      });
      Truncate(block, block->count - 1);
      return;
    }
    if (b == 0 || firsts_[b] < at) return;
  }
}

int64_t AddressList::Find(const Item& item, Fit fit, int64_t limit,
                          int64_t* visited) const {
  const auto scan_block = Scans()[0].scan;
  const bool first = fit == Fit::kFirst;
  Scan scan{.lower = item.lower,
            .upper = item.upper,
            .size = item.size,
            .enough = first ? kAny : item.size};
  const int64_t highest =
      first ? std::max<int64_t>(limit, item.size) - item.size : kAny;
  for (const auto& block : blocks_) {
    *visited += static_cast<int64_t>(block->count);
    if (scan_block(*block, &scan)) return scan.offset;
    if (scan.reach > highest) return scan.reach;
  }
  return scan.gap == Scan::kNone ? scan.reach : scan.offset;
}

void AddressList::List(const Item& item, std::vector<uint32_t>* items,
                       int64_t* visited) const {
  const auto list_block = Scans()[0].list;
  size_t count = 0;
  for (const auto& block : blocks_) {
    *visited += static_cast<int64_t>(block->count);
    items->resize(count + ScanBlock::kCapacity + 16);
    count += list_block(*block, item.lower, item.upper, items->data() + count);
  }
  items->resize(count);
}

Occupancy::Occupancy(const Problem& problem) {
  if (problem.items.size() < kMinItemsInWindows) return;
  const auto slots = static_cast<int32_t>(problem.live.size());
  int32_t width = kLeastWidth;
  while (width < slots && !AreFew(problem, width)) width *= 2;
  // Leaves out windows (of 2 width) with half of all slots or more.
  for (; width < slots / 4; width *= kWider) {
    levels_.push_back(
        {width, std::vector<AddressList>(
                    static_cast<size_t>((slots - 1) / width) + 1)});
  }
}

// Returns the list to scan for the item. A lifetime of at most `width` slots
// lies inside the window that has the lifetime's begin in its first half.
const AddressList& Occupancy::ListOf(const Item& item) const {
  for (const Windows& level : levels_) {
    if (item.lifetime() > level.width) continue;
    return level.lists[static_cast<size_t>(item.lower / level.width)];
  }
  return whole_;
}

void Occupancy::ForEachList(const Item& item, auto visit) {
  visit(whole_);
  for (Windows& level : levels_) {
    for (int32_t k = FirstWindow(item, level.width);
         k <= LastWindow(item, level.width); ++k) {
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

void Occupancy::Add(const Item& item, int64_t at, uint32_t k) {
  ForEachList(item, [&](AddressList& list) { list.Add(item, at, k); });
}

void Occupancy::Remove(const Item& item, int64_t at, uint32_t k) {
  ForEachList(item, [&](AddressList& list) { list.Remove(at, k); });
}

int64_t Occupancy::Find(const Item& item, Fit fit, int64_t limit) const {
  return ListOf(item).Find(item, fit, limit, &visited_);
}

void Occupancy::List(const Item& item, std::vector<uint32_t>* items) const {
  ListOf(item).List(item, items, &visited_);
}

}  // namespace sluice::planner
