// What becomes of a class of activations between forward and backward, as
// shares of its tokens: kept on the GPU, swapped to host memory, recomputed.
// From profile to plan a fraction has these two forms; what a run carries out
// is the third (planner/stream/fractions.h).
//
// Thread safety: values.
#pragma once

#include <optional>

namespace sluice::plan {

// What a rank asks for, in a profile and in the problem that is made of it;
// unset: the planner chooses.
struct GivenFractions {
  std::optional<double> keep, swap;
  bool all() const { return keep && swap; }
  bool operator==(const GivenFractions&) const = default;
};

// What is planned. They sum to 1.
struct TokenFractions {
  double keep = 0;
  double swap = 0;
  double recompute = 0;
  bool operator==(const TokenFractions&) const = default;
};

}  // namespace sluice::plan
