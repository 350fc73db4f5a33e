// The type of sizes in bytes, and the parsers of sizes and counts that all
// flags and configuration keys share.
//
// In public headers, a size in bytes is `Bytes` and never a bare integer,
// because a swapped pair of integers would compile.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// A signed amount of memory. Signed, so that differences are exact; a negative
// value is a bug wherever a size is expected.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count) {}

  constexpr int64_t count() const { return count_; }
  constexpr size_t size() const { return static_cast<size_t>(count_); }

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes b) { return count_ += b.count_, *this; }
  constexpr Bytes& operator-=(Bytes b) { return count_ -= b.count_, *this; }

  friend constexpr Bytes operator+(Bytes a, Bytes b) { return a += b; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return a -= b; }
  friend constexpr Bytes operator*(Bytes a, int64_t n) {
    return Bytes(a.count_ * n);
  }
  friend constexpr Bytes operator*(int64_t n, Bytes a) { return a * n; }
  // Returns how many whole `b` fit in `a`.
  friend constexpr int64_t operator/(Bytes a, Bytes b) {
    return a.count_ / b.count_;
  }
  friend constexpr Bytes operator/(Bytes a, int64_t n) {
    return Bytes(a.count_ / n);
  }

 private:
  int64_t count_ = 0;
};

constexpr Bytes KiB(int64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(int64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(int64_t n) { return Bytes(n << 30); }

// Returns the smallest multiple of `unit` that is at least `size`. Use it for
// alignment only; Sluice never rounds to powers of two.
constexpr Bytes RoundUp(Bytes size, Bytes unit) {
  return ((size.count() + unit.count() - 1) / unit.count()) * unit;
}

// Formats for people, with at most one decimal: "36 MiB", "1.5 GiB", "512 B".
std::string FormatBytes(Bytes size);

// Formats "36MiB", "40000001B", for commands that are printed for people to
// run: ParseBytes returns exactly `size`.
std::string ExactBytes(Bytes size);

// Parses "36MiB" (2^20), "36MB" (10^6), "4096B"; decimals are allowed, a unit's
// case and blanks do not matter. InvalidArgument, with what to write: the text
// has no unit ("40", except "0") or an ambiguous unit ("40G").
absl::StatusOr<Bytes> ParseBytes(std::string_view text);

// Parses a count of tokens, rows or steps: "131072", "128K", "1.5M", with K =
// 1,024 and M = 1,048,576 as in names of sequence lengths. The caller checks
// the range.
absl::StatusOr<int64_t> ParseCount(std::string_view text);

}  // namespace sluice
