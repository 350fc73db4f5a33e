// Which parts of a region are free: offsets only, no memory.
//
// Free blocks are kept by offset and by size. Allocate takes the smallest
// block that fits (of equals the highest) and cuts from its top end, so that
// what lives long (weights, optimizer states) gathers at the top and leaves
// the bottom whole for the planned area. Free joins neighbours at once; no
// size is rounded, so the bytes free are exact.
//
// Thread safety: none; the allocator locks.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "proto/base/units.h"

namespace sluice::runtime {

class RegionPool {
 public:
  explicit RegionPool(Bytes size);

  // The offset of `size` > 0 bytes, or nothing.
  std::optional<Bytes> Allocate(Bytes size);
  // The lowest place that fits.
  std::optional<Bytes> AllocateLow(Bytes size);
  // Exactly what was allocated.
  void Free(Bytes offset, Bytes size);

  Bytes free() const { return free_; }
  Bytes largest_free() const;
  // Sorted, joined, inside the region, sums right; ends the process if not.
  void CheckInvariants() const;

 private:
  using ByOffset = std::map<Bytes, Bytes>;  // offset -> size
  void Insert(Bytes offset, Bytes size);
  void Erase(ByOffset::iterator block);

  const Bytes size_;
  Bytes free_;
  ByOffset by_offset_;
  std::set<std::pair<Bytes, Bytes>> by_size_;  // (size, offset)
};

}  // namespace sluice::runtime
