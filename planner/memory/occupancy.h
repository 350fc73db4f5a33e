// Which addresses are taken in which slots (internal to the planner): the
// index that makes a greedy placement of 60,000 buffers a matter of seconds.
//
// A segment tree over the slots. An item lies in the O(log slots) nodes that
// make up its lifetime; each node keeps the union of what lies in it as
// ascending spans. Spans of wide nodes are few, because over a long time
// nearly every address was used; those of narrow nodes are as many as there
// are holes. So no pair of items is ever stored or looked at, and memory is
// O(items log slots) at worst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::planner {

enum class Fit {
  kFirst,  // the lowest gap that is large enough
  kBest,   // the smallest such gap, the lowest on ties
};

class Occupancy {
 public:
  explicit Occupancy(size_t slots);

  void Clear();

  // Takes [begin, end) in slots [lower, upper).
  void Add(int32_t lower, int32_t upper, int64_t begin, int64_t end);

  // Where `size` units fit in all slots of [lower, upper).
  int64_t Find(int32_t lower, int32_t upper, int64_t size, Fit fit);

 private:
  struct Span {
    int64_t begin;
    int64_t end;
  };
  using Spans = std::vector<Span>;  // ascending; they neither meet nor overlap
  // What is left of a node's spans at and above the address looked at.
  struct Cursor {
    const Span* at;
    const Span* end;
  };
  struct Node {
    Spans within;  // of items that live in part of it or all of it
    Spans across;  // of items that fill it and not its parent
  };

  static void Insert(Span span, Spans* spans);
  void Open(int32_t lower, int32_t upper);
  int64_t FirstFree(int64_t from, int64_t size);
  int64_t NextTaken() const;

  // Calls inside(node) for the topmost nodes at depths that `stride` divides
  // (or leaves) that [lower, upper) fills, above(node) for those above them.
  template <typename Inside, typename Above>
  void Visit(int32_t lower, int32_t upper, int stride, Inside inside,
             Above above);

  size_t leaves_;
  std::vector<Node> nodes_;  // of node k: children 2k, 2k + 1; root 1
  std::vector<Cursor> cursors_;
  std::vector<Cursor> above_;
};

}  // namespace sluice::planner
