// Units: repeated pieces of work, such as a chunk's forward. The planner plans
// each unit's memory once.
#pragma once

#include <string>
#include <string_view>

#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::plan {

inline constexpr size_t kMaxUnits = 4096;
// Plans of larger units are not stored, because each reader of a stored plan
// checks its placement (ValidatePlacement).
inline constexpr size_t kMaxUnitBuffers = 4096;

struct UnitPlan {
  Trace trace;  // canonical
  Placement placement;
};

// Returns the trace without details that do not affect a placement: ids count
// up, and each time becomes its index among the sorted times. A placement of
// either trace is valid for the other.
Trace Canonical(const Trace& trace);
// Returns HashBytes of the canonical trace.
std::string UnitKey(const Trace& trace);
bool SameUnit(const Trace& a, const Trace& b);  // REQUIRES: canonical

// Returns a 128-bit FNV-1a hash in hex. It is stable across machines and
// versions, but not cryptographic.
std::string HashBytes(std::string_view bytes);

}  // namespace sluice::plan
