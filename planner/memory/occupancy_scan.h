// The inner loop of Occupancy::Find (internal to the planner).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice::planner {

// A block of items, ascending in `begin`. Unused places, from `count` on, have
// lifetimes that overlap with no slot.
struct ScanBlock {
  static constexpr size_t kCapacity = 256;

  size_t count = 0;
  alignas(64) int32_t lower[kCapacity];
  alignas(64) int32_t upper[kCapacity];
  alignas(64) int64_t begin[kCapacity];
  alignas(64) int64_t end[kCapacity];
  alignas(64) uint32_t item[kCapacity];
};

// The state of one Find while it goes up through the blocks.
struct Scan {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int32_t lower;  // slots
  int32_t upper;
  int64_t size;
  int64_t enough;       // a gap of at most this ends the scan
  int64_t reach = 0;    // the highest end of the scanned items
  int64_t gap = kNone;  // the smallest gap of `size` or more, lowest on ties
  int64_t offset = 0;   // of that gap
};

struct ScanFunctions {
  const char* name;
  // Scans the items of a block. Returns true if the answer is found.
  bool (*scan)(const ScanBlock& block, Scan* scan);
  // Writes the items of a block that live in slots of [lower, upper) to
  // `items`, in the block's order, and returns their number. `items` has room
  // for kCapacity + 16.
  size_t (*list)(const ScanBlock& block, int32_t lower, int32_t upper,
                 uint32_t* items);
};

// Returns the variants that this machine can run, the fastest first. All give
// the same results.
const std::vector<ScanFunctions>& Scans();

}  // namespace sluice::planner
