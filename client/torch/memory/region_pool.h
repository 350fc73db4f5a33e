// The free parts of a region: offsets only, no memory.
//
// Free blocks are indexed by offset and by size. Allocate takes the smallest
// block that fits (among equals the highest) and cuts from its top end. So
// long-lived memory (weights, optimizer states) gathers at the top and leaves
// the bottom whole for the planned area. Free joins neighbours at once. No size
// is rounded, so the count of free bytes is exact.
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

  // Returns the offset of `size` > 0 bytes, or nullopt.
  std::optional<Bytes> Allocate(Bytes size);
  // As Allocate, but returns the lowest place that fits.
  std::optional<Bytes> AllocateLow(Bytes size);
  // Frees exactly what one call allocated.
  void Free(Bytes offset, Bytes size);

  Bytes free() const { return free_; }
  Bytes largest_free() const;
  // Ends the process unless blocks are sorted, joined and inside the region,
  // and the sums are right.
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
