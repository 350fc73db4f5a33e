#include "daemon/state/field_types.h"

namespace sluice::daemon::fields {

// Avoids the 128-bit division of absl's conversions, since each row of a
// session has several times.
TimeParts ToParts(absl::Time time) {
  if (time == absl::InfiniteFuture()) return {1, TimeParts::kInfinite};
  if (time == absl::InfinitePast()) return {-1, TimeParts::kInfinite};
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounded down
  absl::Duration rest = time - absl::FromUnixSeconds(seconds);
  const int64_t nanos = absl::ToInt64Nanoseconds(rest);
  rest -= absl::Nanoseconds(nanos);
  int64_t quarters = 4 * nanos;
  static const absl::Duration kQuarter = absl::Nanoseconds(1) / 4;
  for (; rest > absl::ZeroDuration(); rest -= kQuarter) ++quarters;
  return {seconds, quarters};
}

absl::Time FromParts(TimeParts parts) {
  if (parts.quarters == TimeParts::kInfinite) {
    return parts.seconds > 0 ? absl::InfiniteFuture() : absl::InfinitePast();
  }
  return absl::UnixEpoch() + absl::Seconds(parts.seconds) +
         absl::Nanoseconds(1) / 4 * parts.quarters;
}

}  // namespace sluice::daemon::fields
