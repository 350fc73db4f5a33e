#include "daemon/core/planning/unit_cache.h"

#include <set>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {

void UnitCache::Add(KeyedUnit unit) {
  const size_t buffers = unit.unit->trace.buffers.size();
  if (buffers > plan::kMaxUnitBuffers || !unit.unit->placement.optimal() ||
      by_key_.contains(unit.key)) {
    return;
  }
  buffers_ += buffers;
  const std::string key = unit.key;
  used_.push_front(std::move(unit));
  by_key_[key] = used_.begin();
  while (used_.size() > plan::kMaxUnits || buffers_ > kBuffersKept) {
    buffers_ -= used_.back().unit->trace.buffers.size();
    by_key_.erase(used_.back().key);
    used_.pop_back();
  }
}

UnitCache::Units UnitCache::Find(const std::vector<std::string>& keys) {
  Units units;
  for (const std::string& key :
       std::set<std::string>(keys.begin(), keys.end())) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) continue;
    used_.splice(used_.begin(), used_, found->second);
    units.push_back(found->second->unit);
  }
  return units;
}

void UnitCache::CheckInvariants() const {
  size_t buffers = 0;
  for (const KeyedUnit& unit : used_) {
    SLUICE_CHECK(by_key_.contains(unit.key));
    buffers += unit.unit->trace.buffers.size();
  }
  SLUICE_CHECK(by_key_.size() == used_.size() && buffers == buffers_);
  SLUICE_CHECK(used_.size() <= plan::kMaxUnits && buffers_ <= kBuffersKept);
}

}  // namespace sluice::daemon
