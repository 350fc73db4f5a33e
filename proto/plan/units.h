// Units: repeated pieces of work. The planner plans the memory of each unit
// once.
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
// Larger units are not kept, because the naive check of a placement is
// quadratic.
inline constexpr size_t kMaxUnitBuffers = 4096;

// A canonical trace and the placement of its buffers.
struct UnitPlan {
  Trace trace;
  Placement placement;
};

// The trace without details that do not affect a placement: ids count up, and
// times become ranks among the times that occur. Requests keep their order, so
// a placement of either trace is one of the other.
Trace Canonical(const Trace& trace);
// A stable 128-bit hash, in hex, of the canonical trace. Measured seconds and
// names do not enter it.
std::string UnitKey(const Trace& trace);
bool SameUnit(const Trace& a, const Trace& b);  // REQUIRES: canonical

// 128-bit FNV-1a in hex: stable across machines and versions, not
// cryptographic.
std::string HashBytes(std::string_view bytes);

}  // namespace sluice::plan
