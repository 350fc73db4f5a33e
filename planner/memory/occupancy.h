// Which addresses are taken in which slots (internal to the planner): the
// index that makes a greedy placement of 60,000 buffers a second's work.
//
// A list has items in blocks, ascending in address. A question goes through
// all of them, sixteen lifetimes an instruction where the machine can, eight
// where it has AVX2, and keeps the highest address reached by those that live
// in the slots asked for. (A segment tree over the slots, which looks at fewer,
// took 3 to 10 times as long on random lifetimes and as long on a training
// run's.) 28 bytes per item; no pair of items is ever stored.
//
// Where lifetimes are short beside the trace, items lie also in the lists of
// windows of slots that overlap by half, of several widths; a question about a
// short lifetime goes through one window alone, with the same answer.
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

  // `item` takes [begin, end) in slots [lower, upper).
  void Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
           uint32_t item);

  // Frees what `item` takes at `begin`.
  void Remove(int64_t begin, uint32_t item);

  // Returns where `size` units fit in all slots of [lower, upper). If a first
  // fit would end above `limit`, returns any offset that does. Adds the items
  // that it visits, the work done, to `visited`.
  int64_t Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
               int64_t limit, int64_t* visited) const;

  // Fills `items` with those that live in slots of [lower, upper), ascending
  // in address.
  void List(int32_t lower, int32_t upper, std::vector<uint32_t>* items,
            int64_t* visited) const;

 private:
  size_t BlockOf(int64_t begin) const;
  void Split(size_t at);

  std::vector<std::unique_ptr<ScanBlock>> blocks_;  // at least one
  std::vector<std::unique_ptr<ScanBlock>> spare_;
  std::vector<int64_t> firsts_;  // blocks_[k] holds begins from firsts_[k] on
};

class Occupancy {
 public:
  // One list.
  Occupancy() = default;

  // With windows where the problem is large and its lifetimes are short.
  explicit Occupancy(const Problem& problem);

  void Clear();
  bool empty() const { return whole_.empty(); }

  // As of AddressList.
  void Add(int32_t lower, int32_t upper, int64_t begin, int64_t end,
           uint32_t item);
  void Remove(const Item& lifetime, int64_t begin, uint32_t item);
  int64_t Find(int32_t lower, int32_t upper, int64_t size, Fit fit,
               int64_t limit) const;
  void List(int32_t lower, int32_t upper, std::vector<uint32_t>* items) const;

  int64_t visited() const { return visited_; }

 private:
  // Window k has slots [k width, (k + 2) width).
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
