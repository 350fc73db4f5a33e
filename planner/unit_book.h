// Remembers planned units, so that a known unit is not solved again, whichever
// rank, segment or daemon life it comes from.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/plan/units.h"

namespace sluice::planner {

// Progress of a node's plan. Reported before each unit and while it is solved.
struct NodeProgress {
  int64_t done = 0;  // segments planned, out of `all`
  int64_t all = 0;
  std::string segment;  // now being planned
  std::string arm;      // now running in the solver
  Bytes peak;           // of the segment's best plan; lower_bound is proved
  Bytes lower_bound;
};

class UnitBook {
 public:
  UnitBook() = default;
  explicit UnitBook(const std::vector<plan::UnitPlan>& known);

  // Returns the placement of an equal unit, valid for `trace`, or null.
  const plan::Placement* Find(const plan::Trace& trace);
  // Adds a solved unit. A placement without a proof is reused within this plan
  // only, because a later plan with more time may find a better one.
  void Add(const plan::Trace& trace, const plan::Placement& placement);
  // Forgets placements without a proof. Call it before a run with better
  // solvers.
  void DropUnproved();

  // Number of distinct units that were solved, and that were found among the
  // given ones.
  int64_t solved() const { return static_cast<int64_t>(solved_.size()); }
  int64_t known() const { return static_cast<int64_t>(known_.size()); }

  std::function<void(const NodeProgress&)> watch;  // may be empty

 private:
  struct Entry {
    plan::UnitPlan unit;
    bool given = false;
  };
  std::map<std::string, Entry> entries_;  // by plan::UnitKey
  std::set<std::string> solved_, known_;
};

}  // namespace sluice::planner
