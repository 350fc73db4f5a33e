// Formats durations for people.
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sluice {

// Formats "2 d 4 h", "3 min 12 s", "10 min", "5 s", "0.52 s", "2.5 ms".
std::string FormatSpan(absl::Duration span);

}  // namespace sluice
