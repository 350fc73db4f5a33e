// Finds the known word that an unknown word probably stands for.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// Returns the word of `known` that is nearest to `typed`, or "" if none is
// near. At most a third of the letters (but at least one) may have been added,
// left out, replaced or swapped with their neighbour.
std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known);

}  // namespace sluice::cli
