// The free parts of a region: offsets only, no memory.
//
// Allocate takes the smallest block that fits (among equals the highest) and
// cuts from its top end. So long-lived memory (weights, optimizer states)
// gathers at the top and leaves the bottom whole for the planned area. Free
// joins neighbours at once. No size is rounded.
//
// Thread safety: none; the allocator locks.
#pragma once

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {

class RegionPool {
 public:
  explicit RegionPool(Bytes size) : size_(size), free_(size) {
    if (size > Bytes(0)) Insert(Bytes(0), size);
  }

  // Returns the offset of `size` > 0 bytes, or nullopt.
  std::optional<Bytes> Allocate(Bytes size) {
    const auto smallest = by_size_.lower_bound({size, Bytes(0)});
    if (smallest == by_size_.end()) return std::nullopt;
    const Bytes block_size = smallest->first;
    const auto highest =
        std::prev(by_size_.lower_bound({block_size + Bytes(1), Bytes(0)}));
    const Bytes offset = highest->second;
    Erase(by_offset_.find(offset));
    if (block_size > size) Insert(offset, block_size - size);
    free_ -= size;
    return offset + (block_size - size);
  }

  // As Allocate, but returns the lowest place that fits.
  std::optional<Bytes> AllocateLow(Bytes size) {
    for (auto block = by_offset_.begin(); block != by_offset_.end(); ++block) {
      const auto [offset, block_size] = *block;
      if (block_size < size) continue;
      Erase(block);
      if (block_size > size) Insert(offset + size, block_size - size);
      free_ -= size;
      return offset;
    }
    return std::nullopt;
  }

  // Frees exactly what one call allocated.
  void Free(Bytes offset, Bytes size) {
    free_ += size;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + size) {
      size += next->second;
      Erase(next);
    }
    next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        Erase(before);
      }
    }
    Insert(offset, size);
  }

  Bytes free() const { return free_; }
  Bytes largest_free() const {
    return by_size_.empty() ? Bytes(0) : by_size_.rbegin()->first;
  }

  // Ends the process unless blocks are sorted, joined and inside the region,
  // and the sums are right.
  void CheckInvariants() const {
    Bytes sum(0), end(-1);
    for (const auto& [offset, size] : by_offset_) {
      SLUICE_CHECK(size > Bytes(0));
      SLUICE_CHECK(offset > end);  // touching blocks would have been joined
      SLUICE_CHECK(by_size_.contains({size, offset}));
      end = offset + size;
      sum += size;
    }
    SLUICE_CHECK(end <= size_);
    SLUICE_CHECK(sum == free_);
    SLUICE_CHECK(by_size_.size() == by_offset_.size());
  }

 private:
  using ByOffset = std::map<Bytes, Bytes>;  // offset -> size
  void Insert(Bytes offset, Bytes size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }

  void Erase(ByOffset::iterator block) {
    by_size_.erase({block->second, block->first});
    by_offset_.erase(block);
  }

  const Bytes size_;
  Bytes free_;
  ByOffset by_offset_;
  std::set<std::pair<Bytes, Bytes>> by_size_;  // (size, offset)
};

}  // namespace sluice::runtime
