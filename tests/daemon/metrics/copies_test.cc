// Tests the copy metrics of /metrics: planned and promised rates, late copies.
#include <fmt/format.h>

#include "daemon/metrics/prometheus_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns three ranks of a job on GPU 0: one without a plan, one with a promise
// in both directions, and one with a plan but no promise.
Snapshot ThreeRanks(CoreDriver& node) {
  for (int rank = 0; rank < 3; ++rank) node.Attach("tune", rank, 3);
  Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  std::vector<RankSnapshot>& ranks = snapshot.jobs.at(0).ranks;
  const PlanDemand demand = {{1e6, 2e6}, {MiB(3), MiB(5)}};
  ranks.at(1).plan_copies = {demand, demand.rates};
  ranks.at(2).plan_copies = {demand, {0, 0}};
  for (RankSnapshot& rank : ranks) rank.weight = 0.5;
  return snapshot;
}

std::string Operators(const Snapshot& snapshot) {
  return PrometheusText(snapshot, {}, Audience::kOperators);
}

// Returns the text of the job's series on GPU 0; `more` are further labels.
std::string Series(const std::string& name, const std::string& more,
                   double value) {
  return fmt::format(
      "\n{}{{gpu=\"0\",UUID=\"GPU-a\",sluice_job=\"tune\",uid=\"1\"{}}} {:.0f}"
      "\n",
      name, more, value);
}

TEST(CopyMetrics, CopyMetricsAreSumsOverAJobsRanksOnAGpu) {
  CoreDriver node;
  const Snapshot snapshot = ThreeRanks(node);
  const std::string text = Operators(snapshot);
  const std::string in = ",direction=\"h2d\"", out = ",direction=\"d2h\"";
  for (const auto& [name, h2d, d2h] :
       {std::tuple{"sluice_job_plan_bytes_per_second", 2e6, 4e6},
        std::tuple{"sluice_job_promised_bytes_per_second", 1e6, 2e6},
        std::tuple{"sluice_job_plan_step_bytes", double{6 << 20},
                   double{10 << 20}}}) {
    EXPECT_THAT(text, HasSubstr(Series(name, in, h2d)));
    EXPECT_THAT(text, HasSubstr(Series(name, out, d2h)));
  }
  EXPECT_THAT(text, HasSubstr("\nsluice_job_link_weight{gpu=\"0\",UUID="
                              "\"GPU-a\",sluice_job=\"tune\",uid=\"1\"} 1.5"));
  EXPECT_THAT(PrometheusText(snapshot, {}, Audience::kAnybody),
              Not(HasSubstr("sluice_job_plan")));
}

TEST(CopyMetrics, AJobWithoutAPlanHasOnlyAWeight) {
  CoreDriver node;
  node.Attach("tune", 0);
  const std::string text =
      Operators(node.core.TakeSnapshot(nullptr, node.clock.Now()));
  EXPECT_THAT(text, HasSubstr(Series("sluice_job_link_weight", "", 1)));
  EXPECT_THAT(text, Not(HasSubstr("sluice_job_plan_bytes_per_second{")));
}

// The grants count late copies per slot, from 0 at each rank's start.
TEST(CopyMetrics, LateCopiesAreCountedPerGpuAndPerJob) {
  CoreDriver node;
  const std::string job =
      "sluice_job_late_copies_total{sluice_job=\"tune\",uid=\"1\",direction=";
  const SessionId a = node.Attach("tune", 0, 2), b = node.Attach("tune", 1, 2);
  const auto seen = [&](const LateCopies& of_a, const LateCopies& of_b) {
    node.core.CopiesSeen({}, {{node.core.session(a)->grant_slot,
                               LateDirections{of_a, LateCopies()}},
                              {node.core.session(b)->grant_slot,
                               LateDirections{LateCopies(), of_b}}});
  };
  const auto text = [&] {
    return Operators(node.core.TakeSnapshot(nullptr, node.clock.Now()));
  };
  EXPECT_THAT(text(), HasSubstr("sluice_late_copies_total{gpu=\"0\",UUID="
                                "\"GPU-a\",direction=\"h2d\"} 0\n"));
  seen({3, 0.25}, {});
  seen({4, 0.5}, {2, 0.125});
  seen({4, 0.5}, {2, 0.125});  // nothing new
  EXPECT_THAT(text(), HasSubstr(job + "\"h2d\"} 4\n"));
  EXPECT_THAT(text(), HasSubstr(job + "\"d2h\"} 2\n"));
  EXPECT_THAT(text(), HasSubstr("sluice_late_copy_seconds_total{gpu=\"0\","
                                "UUID=\"GPU-a\",direction=\"h2d\"} 0.5\n"));
  const Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  EXPECT_EQ(snapshot.jobs.at(0).ranks.at(0).late[kH2d], (LateCopies{4, 0.5}));
  EXPECT_THAT(PrometheusText(snapshot, {}, Audience::kAnybody),
              AllOf(HasSubstr("sluice_late_copies_total{"),
                    Not(HasSubstr("sluice_job_late"))));
  // A dead rank's counts stay, and the next rank in its slot starts at 0.
  const int slot = node.core.session(a)->grant_slot;
  node.Die(a);
  const SessionId next = node.Attach("tune", 0, 2);
  ASSERT_EQ(node.core.session(next)->grant_slot, slot);
  node.core.CopiesSeen(
      {}, {{slot, LateDirections{LateCopies{1, 1}, LateCopies()}}});
  EXPECT_THAT(text(), HasSubstr(job + "\"h2d\"} 5\n"));
}

TEST(CopyMetrics, ARankWithAnEndedSocketHasNoShareOfTheLinks) {
  CoreDriver node;
  Snapshot snapshot = ThreeRanks(node);
  snapshot.jobs.at(0).ranks.at(1).closed = true;
  EXPECT_THAT(Operators(snapshot),
              HasSubstr(Series("sluice_job_promised_bytes_per_second",
                               ",direction=\"h2d\"", 0)));
}

}  // namespace
}  // namespace sluice::daemon
