// An index of the addresses that are taken in each slot (internal to the
// planner). With it a greedy placement of 60,000 buffers takes about a second.
//
// A list holds items in blocks, ascending in address. A query scans all items,
// and tracks the highest end of those that live in the queried slots. (Not a
// segment tree over the slots, which takes 3 to 10 times as long on random
// lifetimes, and the same time on lifetimes of a training run.)
//
// If lifetimes are short compared with the trace, items are also stored in
// lists of half-overlapping windows of slots, of several widths. A query about
// a short lifetime then scans only one window, with the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

// ---- The inner loop (occupancy_scan.cc) -------------------------------------

// Items ascending in `begin`. Lifetimes of unused places overlap no slot.
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

  int32_t lower;  // the queried slots are [lower, upper)
  int32_t upper;
  int64_t size;
  int64_t enough;       // a gap of at most this ends the scan
  int64_t reach = 0;    // the highest end of the scanned items
  int64_t gap = kNone;  // the smallest gap of `size` or more, lowest on ties
  int64_t offset = 0;   // where `gap` begins
};

struct ScanFunctions {
  const char* name;
  // Scans the items of a block. Returns true if the answer is found.
  bool (*scan)(const ScanBlock& block, Scan* scan);
  // Writes the items of a block that live in slots of [lower, upper) to
  // `items`, which has room for kCapacity + 16, and returns their number.
  size_t (*list)(const ScanBlock& block, int32_t lower, int32_t upper,
                 uint32_t* items);
};

// Returns the variants that this machine can run, the fastest first.
const std::vector<ScanFunctions>& Scans();

// ---- The index -------------------------------------------------------------

enum class Fit {
  kFirst,  // the lowest gap that is large enough
  kBest,   // the smallest such gap, the lowest on ties
};

class AddressList {
 public:
  AddressList();

  void Clear();
  bool empty() const { return blocks_.size() == 1 && blocks_[0]->count == 0; }

  // Marks the range of `item`, which has number k and begins at `at`, as taken.
  void Add(const Item& item, int64_t at, uint32_t k);

  // Frees the range of item k, which begins at `at`.
  void Remove(int64_t at, uint32_t k);

  // Returns an offset where `item` has room in all of its slots. If even the
  // first fit would end above `limit`, returns some offset at which `item` ends
  // above `limit`. Adds the number of visited items to `visited`.
  int64_t Find(const Item& item, Fit fit, int64_t limit,
               int64_t* visited) const;

  // Fills `items` with the numbers of the items that live together with `item`,
  // ascending in address.
  void List(const Item& item, std::vector<uint32_t>* items,
            int64_t* visited) const;

 private:
  size_t BlockOf(int64_t begin) const;
  void Split(size_t at);

  std::vector<std::unique_ptr<ScanBlock>> blocks_;  // at least one
  std::vector<std::unique_ptr<ScanBlock>> spare_;
  std::vector<int64_t> firsts_;  // blocks_[k] begins at firsts_[k]
};

class Occupancy {
 public:
  Occupancy() = default;  // without windows
  // Uses windows if the problem is large and its lifetimes are short.
  explicit Occupancy(const Problem& problem);

  void Clear();
  bool empty() const { return whole_.empty(); }

  // These do what AddressList's functions do.
  void Add(const Item& item, int64_t at, uint32_t k);
  void Remove(const Item& item, int64_t at, uint32_t k);
  int64_t Find(const Item& item, Fit fit, int64_t limit) const;
  void List(const Item& item, std::vector<uint32_t>* items) const;

  int64_t visited() const { return visited_; }

 private:
  // Window k covers slots [k width, (k + 2) width).
  struct Windows {
    int32_t width;
    std::vector<AddressList> lists;
  };

  const AddressList& ListOf(const Item& item) const;
  void ForEachList(const Item& item, auto visit);

  AddressList whole_;
  std::vector<Windows> levels_;  // the narrowest first
  mutable int64_t visited_ = 0;
};

}  // namespace sluice::planner
