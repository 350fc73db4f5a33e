#include "proto/base/span_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sluice {
namespace {

// Formats two units, such as "2 h 3 min". One large unit has `per` small units.
std::string OfTwo(int64_t small, int64_t per, const char* large_unit,
                  const char* small_unit) {
  std::string text = fmt::format("{} {}", small / per, large_unit);
  if (small % per > 0) text += fmt::format(" {} {}", small % per, small_unit);
  return text;
}

}  // namespace

std::string FormatSpan(absl::Duration span) {
  if (span == absl::InfiniteDuration()) return "without end";
  const double seconds = std::max(absl::ToDoubleSeconds(span), 0.0);
  if (seconds > 0 && seconds < 0.1) {
    return fmt::format("{:.3g} ms", seconds * 1000);
  }
  if (seconds < 10 && seconds != std::floor(seconds)) {
    return fmt::format("{:.2f} s", seconds);
  }
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return OfTwo(whole, 60, "min", "s");
  if (whole < 86400) return OfTwo(whole / 60, 60, "h", "min");
  return OfTwo(whole / 3600, 24, "d", "h");
}

}  // namespace sluice
