// The fractions of a class's tokens that are kept on the GPU, swapped to host
// memory, or recomputed between forward and backward. Profiles and plans use
// the two types below; a training run uses a third one
// (planner/stream/fractions.h).
//
// Thread safety: values.
#pragma once

#include <optional>

namespace sluice::plan {

// The fractions that a rank requests in its profile. The planner chooses those
// that are unset.
struct GivenFractions {
  std::optional<double> keep, swap;
  bool all() const { return keep && swap; }
  bool operator==(const GivenFractions&) const = default;
};

// Planned fractions. They sum to 1.
struct TokenFractions {
  double keep = 0;
  double swap = 0;
  double recompute = 0;
  bool operator==(const TokenFractions&) const = default;
};

}  // namespace sluice::plan
