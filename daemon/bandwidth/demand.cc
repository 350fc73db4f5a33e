#include "daemon/bandwidth/demand.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "proto/base/span_text.h"

namespace sluice::daemon::bandwidth {
namespace {

// Looked at before the bound from above is taken as it is.
constexpr int kMaxDeadlines = 8192;

double Size(const Demand& demand) {
  return static_cast<double>(demand.bytes.count());
}

// All bounds together are at most `rate` * t + `head_start`, from which they
// part by less and less as t grows.
struct Line {
  double rate = 0;
  double head_start = 0;
  double At(double seconds) const { return rate + head_start / seconds; }
};

Line LineAbove(const std::vector<Demand>& demands) {
  Line line;
  for (const Demand& demand : demands) {
    const double rate = Size(demand) / absl::ToDoubleSeconds(demand.period);
    line.rate += rate;
    line.head_start +=
        rate * absl::ToDoubleSeconds(demand.period - demand.deadline);
  }
  return line;
}

}  // namespace

absl::Status CheckDemand(const Demand& demand) {
  if (demand.bytes > Bytes(0) && demand.deadline > absl::ZeroDuration() &&
      demand.deadline <= demand.period &&
      demand.period < absl::InfiniteDuration()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "a demand of {} bytes, due after {}, every {}: give bytes above 0 and 0 "
      "< deadline <= period",
      demand.bytes.count(), FormatSpan(demand.deadline),
      FormatSpan(demand.period)));
}

double DemandBound(const Demand& demand, absl::Duration span) {
  if (span < demand.deadline) return 0;
  absl::Duration rest;
  const int64_t more =
      absl::IDivDuration(span - demand.deadline, demand.period, &rest);
  return static_cast<double>(more + 1) * Size(demand);
}

double LeastRate(const std::vector<Demand>& demands) {
  const Line above = LineAbove(demands);
  if (above.head_start <= 0) return above.rate;  // each due when the next comes
  using Due = std::pair<absl::Duration, size_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> next;
  for (size_t i = 0; i < demands.size(); ++i)
    next.push({demands[i].deadline, i});
  double due = 0, most = above.rate;
  for (int i = 0; i < kMaxDeadlines; ++i) {
    const auto [at, which] = next.top();
    const double seconds = absl::ToDoubleSeconds(at);
    // From here on nothing can be above the line.
    const double ceiling = above.At(seconds);
    if (ceiling <= most) return most;
    if (ceiling <= most * (1 + kRateSlack)) return ceiling;
    next.pop();
    next.push({at + demands[which].period, which});
    due += Size(demands[which]);
    most = std::max(most, due / seconds);
  }
  const double seconds = absl::ToDoubleSeconds(next.top().first);
  return std::max(most, above.At(seconds));
}

}  // namespace sluice::daemon::bandwidth
