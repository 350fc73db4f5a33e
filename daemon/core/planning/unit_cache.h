// The plan cache's memory part: units (proto/plan/units.h) with a proved
// placement, by their key. Each is solved once for all users.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/plan/units.h"

namespace sluice::daemon {

// Its key was made off the loop: a trace can be large.
struct KeyedUnit {
  std::string key;
  std::shared_ptr<const plan::UnitPlan> unit;
};

class UnitCache {
 public:
  using Units = std::vector<std::shared_ptr<const plan::UnitPlan>>;
  // Least recently used ones go first.
  static constexpr size_t kBuffersKept = 1 << 18;

  // Nothing where it is there already, or is none to keep.
  void Add(KeyedUnit unit);
  // Those of `keys` that are there, each once; they count as used.
  Units Find(const std::vector<std::string>& keys);

  void CheckInvariants() const;

 private:
  std::list<KeyedUnit> used_;  // the last one first
  std::map<std::string, std::list<KeyedUnit>::iterator> by_key_;
  size_t buffers_ = 0;
};

}  // namespace sluice::daemon
