// Formats amounts for people. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::ctl {

// "36 MiB"; "-" for a negative amount (unknown, unlimited).
std::string Size(int64_t bytes);
// FormatSpan of a number of seconds.
std::string Span(double seconds);
// "12,345".
std::string Count(double value);
// "2.3026".
std::string Loss(double value);
// "#####.....  50 %" of ten characters.
std::string Bar(double part, double whole);

}  // namespace sluice::ctl
