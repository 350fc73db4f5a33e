// Hand computed bounds, and the least rate beside a search that looks at every
// deadline for a long time.
#include "daemon/bandwidth/demand.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon::bandwidth {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;

Demand DemandOfSeconds(int64_t bytes, int deadline_s, int period_s) {
  return {Bytes(bytes), absl::Seconds(deadline_s), absl::Seconds(period_s)};
}

double Naive(const std::vector<Demand>& demands, absl::Duration until) {
  double most = 0, used = 0;
  for (const Demand& demand : demands) {
    used += static_cast<double>(demand.bytes.count()) /
            absl::ToDoubleSeconds(demand.period);
    for (absl::Duration at = demand.deadline; at <= until;
         at += demand.period) {
      double due = 0;
      for (const Demand& other : demands) due += DemandBound(other, at);
      most = std::max(most, due / absl::ToDoubleSeconds(at));
    }
  }
  return std::max(most, used);
}

TEST(Demand, BoundCountsWhatIsAskedForAndDueInside) {
  const Demand demand = DemandOfSeconds(5, 3, 8);
  EXPECT_EQ(DemandBound(demand, absl::Seconds(2)), 0);
  EXPECT_EQ(DemandBound(demand, absl::Seconds(3)), 5);
  EXPECT_EQ(DemandBound(demand, absl::Seconds(10)), 5);
  EXPECT_EQ(DemandBound(demand, absl::Seconds(11)), 10);
}

TEST(Demand, RefusesWhatIsNone) {
  EXPECT_THAT(CheckDemand(DemandOfSeconds(5, 3, 3)), IsOk());
  for (const Demand& wrong :
       {DemandOfSeconds(0, 3, 8), DemandOfSeconds(5, 0, 8),
        DemandOfSeconds(5, 9, 8)}) {
    EXPECT_THAT(CheckDemand(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("0 < deadline <= period")));
  }
  EXPECT_THAT(
      CheckDemand({Bytes(1), absl::Seconds(1), absl::InfiniteDuration()}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(LeastRate, IsTheSumOfRatesWhereDeadlineAndPeriodAreTheSame) {
  EXPECT_EQ(LeastRate({}), 0);
  EXPECT_DOUBLE_EQ(
      LeastRate({DemandOfSeconds(6, 2, 2), DemandOfSeconds(5, 10, 10)}), 3.5);
}

// 1 unit due at 4 and 3 units due at 3 fill a link of 1 unit a second exactly,
// though their rates by deadline are 1/4 + 1.
TEST(LeastRate, OfTheIssuesExampleIsTheLinksOwn) {
  EXPECT_DOUBLE_EQ(
      LeastRate({DemandOfSeconds(1, 4, 8), DemandOfSeconds(3, 3, 8)}), 1);
  EXPECT_DOUBLE_EQ(LeastRate({DemandOfSeconds(3, 3, 8)}), 1);
  EXPECT_DOUBLE_EQ(LeastRate({DemandOfSeconds(1, 4, 8)}), 0.25);
}

// First 2 bytes within 1 s. Then 1 + 6 within 5 s; the rates alone are 1/5 and
// 6/20.
TEST(LeastRate, IsSetByTheTightestSpan) {
  EXPECT_DOUBLE_EQ(
      LeastRate({DemandOfSeconds(2, 1, 5), DemandOfSeconds(6, 5, 20)}), 2);
  EXPECT_DOUBLE_EQ(
      LeastRate({DemandOfSeconds(1, 1, 5), DemandOfSeconds(6, 5, 20)}), 1.4);
}

TEST(LeastRate, IsNeverTooLittleAndHardlyTooMuch) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<Demand> demands;
    for (int i = pick(1, 6); i > 0; --i) {
      const int period = pick(1, 30);
      demands.push_back(
          DemandOfSeconds(pick(1, 1000), pick(1, period), period));
    }
    const double exact = Naive(demands, absl::Seconds(5000));
    EXPECT_GE(LeastRate(demands), exact * (1 - 1e-12)) << round;
    EXPECT_LE(LeastRate(demands), exact * (1 + 2 * kRateSlack)) << round;
  }
}

// A period of a millisecond beside one of an hour: it stops in time, above.
TEST(LeastRate, StopsWhereDeadlinesAreTooMany) {
  const std::vector<Demand> demands = {
      {Bytes(1000), absl::Microseconds(999), absl::Milliseconds(1)},
      {Bytes(1'000'000), absl::Minutes(30), absl::Hours(1)}};
  const double rates = 1e6 + 1e6 / 3600;
  EXPECT_GE(LeastRate(demands), rates);
  EXPECT_LE(LeastRate(demands), 1.1 * rates);
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
