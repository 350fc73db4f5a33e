// Tests the daemon's event log and counters: which request caused an event, and
// the per-job counters of a limited number of jobs.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

using ::testing::ElementsAre;

// Returns "kind cause" of each event.
std::vector<std::string> Causes(const CoreDriver& node) {
  std::vector<std::string> all;
  for (const LoggedEvent& event : node.core.log().events()) {
    all.push_back(std::string(Name(event.kind)) + " " + event.cause.Text());
  }
  return all;
}

TEST(Events, EventsNameTheRequestOrSessionThatCausedThem) {
  CoreDriver node;
  const SessionId a = node.Connect();
  ASSERT_EQ(a.value(), 1u);
  node.Ask(a, HelloRequest{.job = "j", .world_size = 1, .local_ranks = 1},
           RequestId(5));
  node.make_at_once = false;  // the lease's event comes later
  node.Ask(a, LeaseRequest{Gpu(0), MiB(4)}, RequestId(6));
  node.Ask(a, LeaseRequest{Gpu(1), MiB(400)}, RequestId(7));
  node.MakeNext();
  node.Die(a);
  EXPECT_THAT(node.Change(DrainChange{Drain{"root", "disk", {}}}), IsOk());
  EXPECT_THAT(Causes(node),
              ElementsAre("attach s1.r5", "refuse s1.r7", "lease s1.r6",
                          "detach s1", "death s1", "drain "));
}

TEST(Events, EventsOfAWaitingLeaseNameItsRequest) {
  CoreDriver node;
  const SessionId a = node.Attach("a", 0), b = node.Attach("b", 0);
  node.Ask(a, LeaseRequest{Gpu(0), MiB(16)}, RequestId(50));
  LeaseRequest waits{Gpu(0), MiB(4)};
  waits.wait = absl::Seconds(9);
  node.Ask(b, waits, RequestId(60));
  node.Die(a);
  const auto causes = Causes(node);
  EXPECT_THAT(causes, ::testing::Contains("wait s2.r60").Times(2));
  EXPECT_THAT(causes, ::testing::Contains("lease s2.r60"));
}

TEST(Events, AFloodOfOneUserDropsOnlyThatUsersEvents) {
  EventLog log(8);
  const Principal honest{1, ""}, flooder{2, ""};
  for (int i = 0; i < 3; ++i) {
    log.Add(absl::UnixEpoch(), EventKind::kLease, "honest", honest);
  }
  for (int i = 0; i < 1000; ++i) {
    log.Add(absl::UnixEpoch(), EventKind::kRefuse, "flood", flooder);
  }
  std::vector<uint64_t> numbers;
  for (const LoggedEvent& event : log.events()) numbers.push_back(event.number);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3, 999, 1000, 1001, 1002, 1003));
  EXPECT_EQ(log.last(), 1003u);
  EXPECT_EQ(log.dropped(), 998u);
}

JobKey Job(int i) { return {{1, ""}, "job" + std::to_string(i)}; }

TEST(JobSeries, ASeriesIsKeptForFiveMinutesAfterItsJob) {
  CoreDriver node;
  const auto steps = [&]() -> int {
    const auto jobs = node.core.TakeSnapshot(nullptr, node.clock.Now()).stats;
    const auto* series = jobs->jobs.Find({{1, "/a"}, "tune"});
    return series == nullptr ? -1 : static_cast<int>(series->stats.steps);
  };
  EXPECT_EQ(steps(), -1);
  const SessionId a = node.Attach("tune", 0);
  node.Ask(a, StepReport{});
  node.Die(a);
  node.clock.Advance(absl::Minutes(5) - absl::Seconds(1));
  EXPECT_EQ(steps(), 1);
  // The job returns, and its series continues.
  const SessionId b = node.Attach("tune", 0);
  node.clock.Advance(absl::Hours(1));
  node.Ask(b, StepReport{});
  EXPECT_EQ(steps(), 2);
  node.Die(b);
  node.clock.Advance(absl::Minutes(5));
  EXPECT_EQ(steps(), -1);
}

TEST(JobSeries, TheJobThatEndedFirstMakesRoom) {
  JobSeries series;
  absl::Time now = absl::UnixEpoch();
  for (size_t i = 0; i < JobSeries::kMost; ++i) {
    series.Began(Job(static_cast<int>(i)), now);
  }
  for (int i : {7, 3}) series.Ended(Job(i), now += absl::Seconds(1));
  series.Began(Job(1000), now);
  EXPECT_EQ(series.Find(Job(7)), nullptr);
  EXPECT_NE(series.Find(Job(3)), nullptr);
  EXPECT_NE(series.Find(Job(1000)), nullptr);
  EXPECT_EQ(series.jobs().size(), JobSeries::kMost);
}

TEST(JobSeries, ANewJobCountsAsOtherWhileAllSeriesAreLive) {
  JobSeries series;
  const absl::Time now = absl::UnixEpoch();
  for (size_t i = 0; i <= JobSeries::kMost; ++i) {
    series.Began(Job(static_cast<int>(i)), now);
    ++series.Of(Job(static_cast<int>(i))).steps;
  }
  const JobKey last = Job(static_cast<int>(JobSeries::kMost));
  EXPECT_EQ(series.jobs().size(), JobSeries::kMost);
  EXPECT_EQ(series.Find(last), nullptr);
  EXPECT_EQ(series.other().steps, 1u);
  series.Ended(last, now);
  EXPECT_EQ(series.other().steps, 1u);  // a counter never falls
  // Once there is room, the job's next rank begins a series.
  series.Ended(Job(0), now);
  series.Began(last, now);
  EXPECT_NE(series.Find(last), nullptr);
}

}  // namespace
}  // namespace sluice::daemon
