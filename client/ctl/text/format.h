// Formats amounts for people. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::ctl {

// Formats "36 MiB", or "-" for a negative amount (unknown, unlimited).
std::string Size(int64_t bytes);
// Formats seconds as FormatSpan does.
std::string Span(double seconds);
// Formats "12,345".
std::string Count(double value);
// Formats "2.3026".
std::string Loss(double value);
// Formats "#####.....  50 %" with ten characters for the bar.
std::string Bar(double part, double whole);

}  // namespace sluice::ctl
