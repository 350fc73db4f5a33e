// Amounts for people. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::ctl {

// "36 MiB"; "-" for a negative amount (unknown, unlimited).
std::string Size(int64_t bytes);
// "2 d 4 h", "3 min 12 s", "0.52 s".
std::string Span(double seconds);
// "12,345".
std::string Count(double value);
// "2.3026".
std::string Loss(double value);
// "#####.....  50 %" of ten characters.
std::string Bar(double part, double whole);

}  // namespace sluice::ctl
