// A trace in the normal form that the solvers use (internal to the planner).
//
// An optimal placement of the problem is also optimal for the trace. Sizes are
// rounded up to the alignment and divided by their greatest common divisor (in
// some optimal placement every offset is a sum of sizes). A slot of time lasts
// from an allocation that follows a free to the next such allocation. Empty
// buffers are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// A buffer, alive in slots [lower, upper).
struct Item {
  int32_t lower = 0;
  int32_t upper = 0;
  int64_t size = 0;   // units, > 0
  int64_t birth = 0;  // in the trace's time; greedy orders use it
  int64_t death = 0;

  int32_t lifetime() const { return upper - lower; }
  double area() const { return static_cast<double>(size) * lifetime(); }
};

struct Problem {
  std::vector<Item> items;
  std::vector<size_t> source;  // items[k] is the trace's buffers[source[k]]
  std::vector<int64_t> live;   // units alive in each slot
  int64_t unit = 1;            // bytes per unit
  int64_t max_live = 0;   // maximum of `live`; a lower bound of any plan's peak
  int32_t peak_slot = 0;  // first slot with that maximum

  bool AtPeak(const Item& item) const {
    return item.lower <= peak_slot && peak_slot < item.upper;
  }
};

// Offset of each item, in units.
using Offsets = std::vector<int64_t>;
// A permutation of item indices; the first is placed first.
using Order = std::vector<uint32_t>;
// Returns true once a solver must stop and return its best result so far.
using Expired = std::function<bool()>;

Problem Normalise(const plan::Trace& trace);

// Range maximum queries over `values`: O(n log n) memory, O(1) per query.
class RangeMax {
 public:
  explicit RangeMax(const std::vector<int64_t>& values);
  // Returns the maximum over [from, to), which must not be empty.
  int64_t Of(int32_t from, int32_t to) const;

 private:
  std::vector<std::vector<int64_t>> levels_;  // [k][i]: maximum of [i, i + 2^k)
};

// Returns for each item how many items, itself included, live together with it.
std::vector<int64_t> NeighbourCounts(const Problem& problem);

// Recomputes live, max_live and peak_slot from the items.
void FinishProblem(Problem* problem);

// Renumbers the items' slots to as few as possible, and calls FinishProblem.
void CompressSlots(Problem* problem);

int64_t PeakOf(const Problem& problem, const Offsets& offsets);

// Returns the placement in bytes and request order, without proof and method.
plan::Placement ToPlacement(const Problem& problem, const Offsets& offsets,
                            const plan::Trace& trace);

}  // namespace sluice::planner
