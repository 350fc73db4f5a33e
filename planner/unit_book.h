// Units with planned memory: a known unit is not solved again, whichever rank,
// segment or daemon life it comes from.
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

// How far a node's plan is: told before each unit and while it is solved.
struct NodeProgress {
  int64_t done = 0;  // segments of `all`
  int64_t all = 0;
  std::string segment;  // that is being planned
  std::string arm;      // of the solver
  Bytes peak;           // of the best plan of it, and what is proved
  Bytes lower_bound;
};

class UnitBook {
 public:
  UnitBook() = default;
  explicit UnitBook(const std::vector<plan::UnitPlan>& known);

  // The placement of an equal unit, valid for this trace; null: none.
  const plan::Placement* Find(const plan::Trace& trace);
  // Keeps what was solved. A placement without a proof answers the rest of
  // this plan only: with more time there may be a better one.
  void Add(const plan::Trace& trace, const plan::Placement& placement);
  // Forgets placements without a proof: before a run with better solvers.
  void DropUnproved();

  // Different units that were solved, and that were found as given.
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
