// Finds the known word that an unknown word probably stands for.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// Returns the word of `known` that is nearest to `typed`, if at most a third of
// the letters (but at least one) were added, left out, exchanged or swapped
// with their neighbour. Returns "" if no word is that near.
std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known);

}  // namespace sluice::cli
