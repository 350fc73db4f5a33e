#include "daemon/core/planning/unit_cache.h"

#include <set>
#include <utility>

#include "proto/base/find.h"
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
  for (const std::string& key : std::set(keys.begin(), keys.end())) {
    const auto* unit = FindOrNull(by_key_, key);
    if (unit == nullptr) continue;
    used_.splice(used_.begin(), used_, *unit);
    units.push_back((*unit)->unit);
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
