#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <ctime>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "proto/base/clock.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"

namespace sluice {

std::string FormatBytes(Bytes size) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB",
                                                 "TiB"};
  double value = static_cast<double>(size.count());
  size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == std::floor(value);
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a size: write bytes, or a number with KiB, MiB, GiB or "
        "TiB, such as 36MiB",
        text));
  };
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) ||
          text[digits] == '.')) {
    ++digits;
  }
  double value = 0;
  if (!absl::SimpleAtod(std::string(text.substr(0, digits)), &value))
    return bad();
  std::string unit;
  for (char c : text.substr(digits)) {
    if (c != ' ') unit += static_cast<char>(std::tolower(c));
  }
  for (const char* suffix : {"ib", "b"}) {
    if (unit.ends_with(suffix)) {
      unit.resize(unit.size() - std::strlen(suffix));
      break;
    }
  }
  constexpr std::string_view kPrefixes = "kmgt";
  if (unit.size() > 1) return bad();
  if (!unit.empty()) {
    const size_t power = kPrefixes.find(unit[0]);
    if (power == std::string_view::npos) return bad();
    value = std::ldexp(value, 10 * static_cast<int>(power + 1));
  }
  if (value >= 9e18) return bad();
  return Bytes(std::llround(value));
}

absl::Time MonotonicClock::Now() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

double MonotonicSeconds() {
  return absl::ToDoubleSeconds(MonotonicClock().Now() - absl::UnixEpoch());
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  return Mark(absl::ErrnoToStatus(error, std::string(what)),
              ShortageOfErrno(error));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(
      status.code(),
      fmt::format("{}: {}", context, std::string(status.message())));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

void CheckFailed(const char* file, int line, const char* what,
                 const std::string& detail) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s %s\n", file, line, what,
               detail.c_str());
  std::abort();
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<UniqueFd> UniqueFd::Duplicate() const {
  const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return ErrnoStatus(errno, "duplicate a file descriptor");
  return UniqueFd(copy);
}

}  // namespace sluice
