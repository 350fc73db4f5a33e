#include "planner/unit_book.h"

namespace sluice::planner {

UnitBook::UnitBook(const std::vector<plan::UnitPlan>& known) {
  for (const plan::UnitPlan& unit : known) {
    entries_[plan::UnitKey(unit.trace)] = {unit, true};
  }
}

const plan::Placement* UnitBook::Find(const plan::Trace& trace) {
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

void UnitBook::Add(const plan::Trace& trace, const plan::Placement& placement) {
  const std::string key = plan::UnitKey(trace);
  solved_.insert(key);
  entries_[key] = {{plan::Canonical(trace), placement}, false};
}

void UnitBook::DropUnproved() {
  std::erase_if(entries_, [](const auto& entry) {
    return !entry.second.unit.placement.optimal();
  });
}

}  // namespace sluice::planner
