// What a profile leaves the planner to choose, and what its fractions come to
// in bytes (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "proto/plan/fractions.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// Fractions of a class that are given: by the class, by the user's alpha, or
// since the runtime has no choice.
plan::GivenFractions GivenOf(const plan::RankProfile& profile,
                             const plan::SkeletalClass& skeletal);

inline double AsDouble(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

using Fractions = std::vector<plan::TokenFractions>;  // of a profile's classes

// The given ones, and nothing kept or swapped beside them.
Fractions GivenOnly(const plan::RankProfile& profile);

// Bytes of all layers together.
Bytes HostBytesOf(const plan::RankProfile& profile, const Fractions& fractions);
Bytes KeptBytesOf(const plan::RankProfile& profile, const Fractions& fractions);

// A pass of that kind of layers copies and has no measured window: no copy can
// hide.
bool HidesNothing(const plan::RankProfile& profile, size_t kind);

}  // namespace sluice::planner
