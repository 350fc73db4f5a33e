// Separates the fractions that are given from those that the planner chooses,
// and computes the bytes of fractions (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "proto/plan/profile.h"

namespace sluice::planner {

// Returns a class's given fractions: requested for the class, set by the user's
// alpha, or fixed because the runtime has no choice.
plan::GivenFractions GivenOf(const plan::RankProfile& profile,
                             const plan::SkeletalClass& skeletal);

inline double AsDouble(Bytes bytes) {
  return static_cast<double>(bytes.count());
}

// One per class of a profile.
using Fractions = std::vector<plan::TokenFractions>;

// Returns the given fractions of all classes. Everything that is open is
// recomputed.
Fractions GivenOnly(const plan::RankProfile& profile);

// Return the swapped and the kept bytes of all layers.
Bytes HostBytesOf(const plan::RankProfile& profile, const Fractions& fractions);
Bytes KeptBytesOf(const plan::RankProfile& profile, const Fractions& fractions);

// Returns whether the kind has a pass that copies but has no measured window,
// so that no copy can overlap with it.
bool HidesNothing(const plan::RankProfile& profile, size_t kind);

}  // namespace sluice::planner
