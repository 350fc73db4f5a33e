// Units: repeated pieces of work, such as a chunk's forward. The planner plans
// each unit's memory once.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::plan {

inline constexpr size_t kMaxUnits = 4096;
// Plans of larger units are not kept, because the naive check of a placement is
// quadratic.
inline constexpr size_t kMaxUnitBuffers = 4096;

// A canonical trace and the placement of its buffers.
struct UnitPlan {
  Trace trace;
  Placement placement;
};

// Returns the trace without details that do not affect a placement: ids count
// up, and each time becomes its rank among all times. Requests keep their
// order, so a placement of either trace is valid for the other.
Trace Canonical(const Trace& trace);
// Returns a stable 128-bit hash, in hex, of the canonical trace. The hash
// ignores measured seconds and names.
std::string UnitKey(const Trace& trace);
bool SameUnit(const Trace& a, const Trace& b);  // REQUIRES: canonical

// Returns a 128-bit FNV-1a hash in hex. It is stable across machines and
// versions, but not cryptographic.
std::string HashBytes(std::string_view bytes);

}  // namespace sluice::plan
