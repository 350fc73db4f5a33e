#include "proto/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"

namespace sluice {
namespace {

constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr std::string_view kPrefixes = "kmgt";

// A parsed number, and its unit in lower case.
struct Written {
  double value = 0;
  std::string number;
  std::string unit;
};

// Parses digits with at most one point, and a unit: no signs, exponents, "inf".
bool Read(std::string_view text, Written& out) {
  const auto is_number = [](unsigned char c) {
    return absl::ascii_isdigit(c) || c == '.';
  };
  const auto end = std::find_if_not(text.begin(), text.end(), is_number);
  out.number = std::string(text.begin(), end);
  const char* last = out.number.data() + out.number.size();
  const auto [at, error] = std::from_chars(out.number.data(), last, out.value);
  if (error != std::errc() || at != last) return false;
  out.unit = absl::AsciiStrToLower(std::string(end, text.end()));
  std::erase(out.unit, ' ');
  return true;
}

absl::Status NoUnit(std::string_view text, const std::string& number) {
  return absl::InvalidArgumentError(fmt::format(
      "'{0}' is not a size, as it names no unit: write {1}GiB (1024^3 bytes), "
      "{1}GB (1000^3) or {1}B",
      text, number));
}

absl::Status BareLetter(std::string_view text, const Written& written) {
  const char letter =
      absl::ascii_toupper(static_cast<unsigned char>(written.unit[0]));
  return absl::InvalidArgumentError(fmt::format(
      "'{0}' is not a size, as {1} may be {1}B (a power of 1000) or {1}iB (of "
      "1024): write {2}{1}B or {2}{1}iB",
      text, letter, written.number));
}

}  // namespace

std::string FormatBytes(Bytes size) {
  auto value = static_cast<double>(size.count());
  size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value == std::floor(value) ? 0 : 1;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string ExactBytes(Bytes size) {
  int64_t value = size.count();
  size_t unit = 0;
  while (value != 0 && value % 1024 == 0 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", value, kUnits[unit]);
}

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a size: write a number with KiB, MiB, GiB or TiB (powers "
        "of 1024), KB, MB, GB or TB (of 1000), or B, such as 36MiB",
        text));
  };
  Written written;
  if (!Read(text, written)) return bad();
  std::string& unit = written.unit;
  if (unit.empty()) {
    return written.value == 0 ? absl::StatusOr<Bytes>(Bytes(0))
                              : NoUnit(text, written.number);
  }
  const size_t power = kPrefixes.find(unit[0]) + 1;  // 0 if it is no prefix
  if (power == 0 && unit != "b") return bad();
  const std::string_view rest = std::string_view(unit).substr(power > 0);
  if (rest.empty()) return BareLetter(text, written);
  if (rest != "b" && rest != "ib") return bad();
  const double base = rest == "ib" ? 1024 : 1000;
  const double value = written.value * std::pow(base, double(power));
  if (!(value < 9e18)) return bad();
  return Bytes(std::llround(value));
}

absl::StatusOr<int64_t> ParseCount(std::string_view text) {
  const bool negative = text.starts_with('-');
  Written written;
  double scale = 0;
  if (Read(text.substr(negative), written)) {
    if (written.unit.empty()) scale = 1;
    if (written.unit == "k") scale = 1 << 10;
    if (written.unit == "m") scale = 1 << 20;
  }
  const double value = written.value * scale;
  // Above 2^53 a double does not represent every integer.
  if (scale == 0 || value != std::floor(value) || value > double(1LL << 53) ||
      text.find(' ') != text.npos) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no whole number: write 131072, 128K or 1.5M (K = 1,024, M = "
        "1,048,576)",
        text));
  }
  return static_cast<int64_t>(negative ? -value : value);
}

}  // namespace sluice
