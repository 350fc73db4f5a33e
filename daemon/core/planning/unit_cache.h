// Units (proto/plan/units.h) with a placement that was proved optimal, by key.
// Each is solved once for all users.
// Thread safety: one thread (core.h).
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/find.h"
#include "proto/base/status.h"
#include "proto/plan/units.h"

namespace sluice::daemon {

// A unit and its key. A trace can be large, so another thread computes the key.
struct KeyedUnit {
  std::string key;
  std::shared_ptr<const plan::UnitPlan> unit;
};

class UnitCache {
 public:
  using Units = std::vector<std::shared_ptr<const plan::UnitPlan>>;
  // The limit of buffers in all units, kept by dropping the least recent units.
  static constexpr size_t kBuffersKept = 1 << 18;

  void Add(KeyedUnit unit) {
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
  // Returns the cached units of `keys`, each once, and marks them as used.
  Units Find(const std::vector<std::string>& keys) {
    Units units;
    for (const std::string& key : std::set(keys.begin(), keys.end())) {
      const auto* unit = FindOrNull(by_key_, key);
      if (unit == nullptr) continue;
      used_.splice(used_.begin(), used_, *unit);
      units.push_back((*unit)->unit);
    }
    return units;
  }

  void CheckInvariants() const {
    size_t buffers = 0;
    for (const KeyedUnit& unit : used_) {
      SLUICE_CHECK(by_key_.contains(unit.key));
      buffers += unit.unit->trace.buffers.size();
    }
    SLUICE_CHECK(by_key_.size() == used_.size() && buffers == buffers_);
    SLUICE_CHECK(used_.size() <= plan::kMaxUnits && buffers_ <= kBuffersKept);
  }

 private:
  std::list<KeyedUnit> used_;  // most recently used first
  std::map<std::string, std::list<KeyedUnit>::iterator> by_key_;
  size_t buffers_ = 0;
};

}  // namespace sluice::daemon
