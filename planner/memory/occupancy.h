// An index of the addresses that are taken in each slot (internal to the
// planner). With it a greedy placement of 60,000 buffers takes about a second.
//
// A list holds items in blocks, ascending in address. A query scans all items,
// sixteen lifetimes per instruction with AVX-512 and eight with AVX2, and
// tracks the highest end of the items that live in the queried slots. (A
// segment tree over the slots visits fewer items, but took 3 to 10 times as
// long on random lifetimes, and as long on a training run's.) An item takes 28
// bytes; no pairs of items are stored.
//
// If lifetimes are short compared with the trace, items are also stored in
// lists of half-overlapping windows of slots, of several widths. A query about
// a short lifetime then scans only one window, with the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner/memory/occupancy_scan.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

enum class Fit {
  kFirst,  // the lowest gap that is large enough
  kBest,   // the smallest such gap, the lowest on ties
};

class AddressList {
 public:
  AddressList();

  void Clear();
  bool empty() const { return blocks_.size() == 1 && blocks_[0]->count == 0; }

  // Marks [begin, end) as taken by `item` in slots [lower, upper).
  void Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
           uint32_t item);

  // Frees the range of `item`, which begins at `begin`.
  void Remove(int64_t begin, uint32_t item);

  // Returns an offset where `size` units are free in all slots of [lower,
  // upper). If even the first fit would end above `limit`, returns any offset
  // that ends above it. Adds the number of visited items to `visited`.
  int64_t Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
               int64_t limit, int64_t* visited) const;

  // Fills `items` with the items that live in slots of [lower, upper),
  // ascending in address.
  void List(int32_t lower, int32_t upper, std::vector<uint32_t>* items,
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
  // An index with a single list, without windows.
  Occupancy() = default;

  // Uses windows if the problem is large and its lifetimes are short.
  explicit Occupancy(const Problem& problem);

  void Clear();
  bool empty() const { return whole_.empty(); }

  // These functions are documented in AddressList.
  void Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
           uint32_t item);
  void Remove(const Item& lifetime, int64_t begin, uint32_t item);
  int64_t Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
               int64_t limit) const;
  void List(int32_t lower, int32_t upper, std::vector<uint32_t>* items) const;

  int64_t visited() const { return visited_; }

 private:
  // Window k covers slots [k width, (k + 2) width).
  struct Windows {
    int32_t width;
    std::vector<AddressList> lists;
  };

  const AddressList& ListOf(int32_t lower, int32_t upper) const;

  template <typename Visitor>
  void ForEachList(int32_t lower, int32_t upper, Visitor visit);

  AddressList whole_;
  std::vector<Windows> levels_;  // the narrowest first
  mutable int64_t visited_ = 0;
};

}  // namespace sluice::planner
