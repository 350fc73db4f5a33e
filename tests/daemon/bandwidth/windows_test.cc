// A plan's windows are longer than the period of what is promised for them. In
// injected time, through the real policy, of a rank that asks as the daemon
// does: never for more than keeps its limit 20 ms of its link ahead of its use.
#include <algorithm>
#include <array>

#include "daemon/bandwidth/bandwidth_policy.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

constexpr double kLink = 25e9;
constexpr absl::Duration kWindowTick = absl::Milliseconds(2);
constexpr absl::Duration kPeriod = absl::Milliseconds(20);
constexpr int kWindows = 50;
constexpr double kTolerance = 1e4;  // bytes: what shares are rounded by

enum class Told { kNothing, kRate, kRateAndDeadline };

double BytesIn(double of_link, absl::Duration time) {
  return of_link * kLink * absl::ToDoubleSeconds(time);
}

class Rank {
 public:
  Rank(BandwidthPolicy& policy, int flow) : policy_(policy), flow_(flow) {
    policy_.Open(flow, 0, kH2d);
  }
  void Promise(double of_link, absl::Time now) {
    const Bytes bytes(static_cast<int64_t>(BytesIn(of_link, kPeriod)));
    SLUICE_CHECK_OK(policy_.Promise(flow_, {bytes, kPeriod, kPeriod}, now));
  }
  // Copies up to `due` as far as it may, and asks for what comes next.
  void Copy(double due, absl::Time now,
            absl::Time needed_by = absl::InfinitePast()) {
    used_ = std::max(used_, std::min(limit_, due));
    const double more = used_ + BytesIn(1, kPeriod) - limit_ - asked_;
    if (more < 1) return;
    policy_.Ask(flow_, more, now, needed_by);
    asked_ += more;
  }
  void Give(double bytes) {
    limit_ += bytes;
    asked_ -= bytes;
  }
  double limit() const { return limit_; }

 private:
  BandwidthPolicy& policy_;
  const int flow_;
  double used_ = 0, limit_ = 0, asked_ = 0;
};

// Rank 0 copies `of_link` of each window; rank 1 is promised the rest of what
// may be, and 1 to 3 copy all they get.
int LateWindows(Told told, double of_link, absl::Duration window) {
  BandwidthPolicy policy(
      *Topology::Make({{"link", std::nullopt, kLink, kLink}}));
  absl::Time now = absl::UnixEpoch();
  std::array<Rank, 4> ranks = {Rank(policy, 0), Rank(policy, 1),
                               Rank(policy, 2), Rank(policy, 3)};
  if (told != Told::kNothing) ranks[0].Promise(of_link, now);
  ranks[1].Promise(0.9 - of_link - 1e-6, now);
  int late = 0;
  double due = 0;
  for (int i = 0; i < kWindows; ++i) {
    due += BytesIn(of_link, window);
    const absl::Time end = now + window;
    for (; now < end; now += kWindowTick) {
      ranks[0].Copy(
          due, now,
          told == Told::kRateAndDeadline ? end : absl::InfinitePast());
      for (int other : {1, 2, 3}) ranks[other].Copy(1e30, now);
      for (const auto& [flow, bytes] : policy.Share(now, kWindowTick)) {
        ranks[flow].Give(bytes);
      }
    }
    if (ranks[0].limit() < due - kTolerance) ++late;
  }
  return late;
}

class Windows : public ::testing::TestWithParam<int> {
 protected:
  int Late(Told told) const {
    return LateWindows(told, 0.6, absl::Milliseconds(GetParam()));
  }
};

TEST_P(Windows, ArePastWithoutAPromise) {
  EXPECT_GT(Late(Told::kNothing), kWindows / 2);
}

TEST_P(Windows, AreMetByTheirRateAlone) { EXPECT_EQ(Late(Told::kRate), 0); }

// Yielding to earlier deadlines neither helps nor harms them.
TEST_P(Windows, AreMetAlsoWhereTheRankNamesTheirEnd) {
  EXPECT_EQ(Late(Told::kRateAndDeadline), 0);
}

INSTANTIATE_TEST_SUITE_P(Milliseconds, Windows,
                         ::testing::Values(20, 40, 100, 400));

}  // namespace
}  // namespace sluice::daemon::bandwidth
