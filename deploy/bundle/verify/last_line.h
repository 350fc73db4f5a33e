// What a program said last, for a reason.
//
// Thread safety: pure.
#pragma once

#include <string>

namespace sluice::verify {

// The last line that is not empty; empty: there is none.
std::string LastLine(const std::string& text);

}  // namespace sluice::verify
