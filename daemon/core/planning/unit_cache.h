// Units (proto/plan/units.h) with a placement that was proved optimal, by key.
// Each is solved once for all users.
// Thread safety: one thread (core.h).
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/plan/units.h"

namespace sluice::daemon {

// A unit and its key, which is computed on another thread because a trace can
// be large.
struct KeyedUnit {
  std::string key;
  std::shared_ptr<const plan::UnitPlan> unit;
};

class UnitCache {
 public:
  using Units = std::vector<std::shared_ptr<const plan::UnitPlan>>;
  // The limit of buffers in all units; the least recently used ones are
  // dropped.
  static constexpr size_t kBuffersKept = 1 << 18;

  // Adds the unit, unless it is cached already, too large, or not proved
  // optimal.
  void Add(KeyedUnit unit);
  // Returns the cached units of `keys`, each once; they count as used.
  Units Find(const std::vector<std::string>& keys);

  void CheckInvariants() const;

 private:
  std::list<KeyedUnit> used_;  // most recently used first
  std::map<std::string, std::list<KeyedUnit>::iterator> by_key_;
  size_t buffers_ = 0;
};

}  // namespace sluice::daemon
