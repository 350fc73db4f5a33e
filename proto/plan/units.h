// Units: repeated pieces of work. Memory is planned once for each.
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
// Larger ones are not kept: the naive check of a placement is quadratic.
inline constexpr size_t kMaxUnitBuffers = 4096;

// A canonical trace and where its buffers lie.
struct UnitPlan {
  Trace trace;
  Placement placement;
};

// The trace without what does not matter to a placement: ids count up, times
// are ranks among the times that occur. Requests keep their order, and a
// placement of the one is one of the other.
Trace Canonical(const Trace& trace);
// A stable 128-bit hash in hex of the canonical trace. Measured seconds and
// names are no part of it.
std::string UnitKey(const Trace& trace);
bool SameUnit(const Trace& a, const Trace& b);  // canonical ones

// FNV-1a with 128 bits, in hex: stable across machines and versions; not
// cryptographic.
std::string HashBytes(std::string_view bytes);

}  // namespace sluice::plan
