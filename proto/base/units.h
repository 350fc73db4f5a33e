// Distinct types for units.
//
// In public headers, a size in bytes is `Bytes` and never a bare integer,
// because functions take sizes, offsets and counts together, and a swapped pair
// of integers would compile.
//
// Thread safety: plain values.
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

// Parses "36MiB" (2^20), "36MB" (10^6), "4096B". A number without a unit is
// InvalidArgument; the message has the text and what to write. See sizes.h.
absl::StatusOr<Bytes> ParseBytes(std::string_view text);

}  // namespace sluice
