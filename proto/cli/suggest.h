// Which known word was meant by one that is not known.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// The word of `known` that `typed` is a slip of: a third of its letters at
// most (and always one) added, left out, exchanged or swapped with its
// neighbour. Empty where none is that near.
std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known);

}  // namespace sluice::cli
