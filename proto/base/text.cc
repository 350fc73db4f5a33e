#include "proto/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

// Returns the length in bytes of the first character of `text`, or 0 if that
// character is a control character, changes the direction or the place of what
// follows it, or is invalid UTF-8.
size_t PrintableAt(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < size) return 0;
  uint32_t code = byte(0) & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  // The least code of a character of 2, 3 and 4 bytes. Two-byte codes below
  // 0xa0 are control characters; an encoding longer than needed is invalid.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool steers = code == 0x61c || code == 0x200e || code == 0x200f ||
                      (code >= 0x2028 && code < 0x202f) ||
                      (code >= 0x2066 && code < 0x206a);
  return code >= kLeast[size] && code <= 0x10ffff && !surrogate && !steers
             ? size
             : 0;
}

// Formats two units, such as "2 h 3 min". One large unit has `per` small units.
std::string OfTwo(int64_t small, int64_t per, const char* large_unit,
                  const char* small_unit) {
  std::string text = fmt::format("{} {}", small / per, large_unit);
  if (small % per > 0) text += fmt::format(" {} {}", small % per, small_unit);
  return text;
}

}  // namespace

std::string Printable(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = PrintableAt(std::string_view(text).substr(at));
    if (size == 0) text[at] = '?';
    at += std::max<size_t>(size, 1);
  }
  return text;
}

std::string PrintableLine(std::string text) {
  constexpr size_t kMost = 1000;
  if (text.size() > kMost) {
    text.resize(kMost);
    text += " ...";
  }
  return Printable(std::move(text));
}

std::string ShellWord(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+=,";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    c == '\'' ? quoted += "'\\''" : quoted += c;
  }
  return quoted + "'";
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

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
