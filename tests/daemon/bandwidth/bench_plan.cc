#include "tests/daemon/bandwidth/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "daemon/core/grants.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon::bandwidth {
namespace {

using bench::Entry;

constexpr double kPlanLink = 25e9;
constexpr absl::Duration kPlanTick = absl::Milliseconds(2);  // as in the daemon
constexpr absl::Duration kWindow = absl::Milliseconds(100);
constexpr int kWindows = 200;
constexpr double kOfLink = 0.6;  // the share of the link that the plan copies

// Returns the number of windows that ended before their copies were done. Rank
// 0 copies its plan's bytes from each window's start on. Ranks 1 to 3 copy all
// that they are granted.
int LateWindows(bool promised) {
  GrantPolicy policy({{"pcie0", kPlanLink, kPlanLink}});
  std::map<int, Directions> used, limit;
  for (const int slot : {0, 1, 2, 3}) {
    limit[slot] = policy.Attach(slot, 0).limit;
    used[slot] = {0, 0};
  }
  if (promised) policy.Promise(0, {kOfLink * kPlanLink, 0});
  const auto bytes = static_cast<uint64_t>(kOfLink * kPlanLink *
                                           absl::ToDoubleSeconds(kWindow));
  const int ticks = static_cast<int>(kWindow / kPlanTick);
  int late = 0;
  uint64_t due = 0;
  for (int window = 0; window < kWindows; ++window) {
    due += bytes;
    for (int tick = 0; tick < ticks; ++tick) {
      for (auto& [slot, now] : used) {
        now[kH2d] =
            slot == 0 ? std::min(limit[slot][kH2d], due) : limit[slot][kH2d];
      }
      for (const auto& [slot, grant] : policy.Refill(used, kPlanTick)) {
        limit[slot] = grant.limit;
      }
    }
    // Bytes count as copied when they are granted.
    if (used[0][kH2d] < due) ++late;
  }
  return late;
}

}  // namespace

std::vector<Entry> PlanRows() {
  const auto row = [](const char* name, bool promised,
                      std::optional<double> target) {
    return Entry{
        name,
        double(LateWindows(promised)),
        "late",
        target,
        true,
        fmt::format("of {} windows of {:g} ms whose copies need {:g} "
                    "of the link, beside 3 ranks that copy all the "
                    "time",
                    kWindows, absl::ToDoubleMilliseconds(kWindow), kOfLink)};
  };
  return {row("a plan's copies", true, 0),
          row("a plan's copies, fair shares", false, std::nullopt)};
}

}  // namespace sluice::daemon::bandwidth
