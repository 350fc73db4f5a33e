// Caches the placements of units (segment traces), so that a unit is solved
// only once even if several ranks, segments or runs of the daemon need it.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/plan/units.h"

namespace sluice::planner {

struct NodeProgress {
  int64_t done = 0;  // segments planned, out of `all`
  int64_t all = 0;
  std::string segment;  // "of rank NAME", the rank being planned
  std::string arm;      // the solver's arm that is running
  Bytes peak;           // peak of the segment's best plan so far
  Bytes lower_bound;    // proved bound of the segment's peak
};

class UnitBook {
 public:
  UnitBook() = default;
  explicit UnitBook(const std::vector<plan::UnitPlan>& known) {
    for (const plan::UnitPlan& unit : known) {
      entries_[plan::UnitKey(unit.trace)] = {unit, true};
    }
  }

  // Returns the placement of a unit with an equal trace, or null.
  const plan::Placement* Find(const plan::Trace& trace) {
    const std::string key = plan::UnitKey(trace);
    const auto found = entries_.find(key);
    // Equal hashes do not prove equal traces.
    if (found == entries_.end() ||
        !plan::SameUnit(found->second.unit.trace, plan::Canonical(trace))) {
      return nullptr;
    }
    if (found->second.given) known_.insert(key);
    return &found->second.unit.placement;
  }
  // Adds a newly solved unit, whether or not its placement is proved optimal.
  void Add(const plan::Trace& trace, const plan::Placement& placement) {
    const std::string key = plan::UnitKey(trace);
    solved_.insert(key);
    entries_[key] = {{plan::Canonical(trace), placement}, false};
  }
  // Drops placements that are not proved optimal. Call it before a run with
  // better solvers.
  void DropUnproved() {
    std::erase_if(entries_, [](const auto& entry) {
      return !entry.second.unit.placement.optimal();
    });
  }

  // Returns the number of distinct units added.
  int64_t solved() const { return static_cast<int64_t>(solved_.size()); }
  // Returns how many of the constructor's units Find has returned.
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
