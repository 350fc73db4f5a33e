// Finds the last line of a program's output, which usually has the reason of a
// failure.
//
// Thread safety: pure.
#pragma once

#include <string>

namespace sluice::verify {

// Returns the last line that is not empty, or "" if there is none.
std::string LastLine(const std::string& text);

}  // namespace sluice::verify
