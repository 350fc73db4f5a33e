// Tests that a rank with a rate promised for spans of 20 ms also meets a plan's
// longer windows, with the real policy in injected time. As in the daemon, a
// rank's limit is at most 20 ms of its link ahead of its use.
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
constexpr double kTolerance = 1e4;  // in bytes: the rounding of shares

double BytesIn(double of_link, absl::Duration time) {
  return of_link * kLink * absl::ToDoubleSeconds(time);
}

class Rank {
 public:
  Rank(BandwidthPolicy& policy, int flow) : policy_(policy), flow_(flow) {
    policy_.Open(flow, 0, kH2d);
  }
  void Promise(double of_link) { policy_.Promise(flow_, of_link * kLink); }
  // Copies up to byte `due` or the limit, and requests the next bytes.
  void Copy(double due) {
    used_ = std::max(used_, std::min(limit_, due));
    policy_.SetWanted(flow_, used_ + BytesIn(1, kPeriod) - limit_);
  }
  void Give(double bytes) { limit_ += bytes; }
  double limit() const { return limit_; }

 private:
  BandwidthPolicy& policy_;
  const int flow_;
  double used_ = 0, limit_ = 0;
};

// Returns the number of rank 0's late windows. In each window rank 0 copies the
// part `of_link` of what the link carries. Rank 1 is promised 0.9 - `of_link`.
// Ranks 1 to 3 copy all they get.
int LateWindows(bool promised, double of_link, absl::Duration window) {
  BandwidthPolicy policy(*Topology::Make({{"link", kLink, kLink}}));
  absl::Time now = absl::UnixEpoch();
  std::array<Rank, 4> ranks = {Rank(policy, 0), Rank(policy, 1),
                               Rank(policy, 2), Rank(policy, 3)};
  if (promised) ranks[0].Promise(of_link);
  ranks[1].Promise(0.9 - of_link);
  int late = 0;
  double due = 0;
  for (int i = 0; i < kWindows; ++i) {
    due += BytesIn(of_link, window);
    const absl::Time end = now + window;
    for (; now < end; now += kWindowTick) {
      ranks[0].Copy(due);
      for (int other : {1, 2, 3}) ranks[other].Copy(1e30);
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
  static int Late(bool promised) {
    return LateWindows(promised, 0.6, absl::Milliseconds(GetParam()));
  }
};

TEST_P(Windows, WindowsAreMissedWithoutAPromise) {
  EXPECT_GT(Late(false), kWindows / 2);
}

TEST_P(Windows, WindowsAreMetWithAPromisedRate) { EXPECT_EQ(Late(true), 0); }

INSTANTIATE_TEST_SUITE_P(Milliseconds, Windows,
                         ::testing::Values(20, 40, 100, 400));

}  // namespace
}  // namespace sluice::daemon::bandwidth
