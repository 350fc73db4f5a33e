// Tests the labels of /metrics, and the metrics of jobs.
#include <fmt/format.h>

#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "daemon/metrics/prometheus_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::Not;

std::string Scrape(const CoreDriver& node,
                   Audience audience = Audience::kOperators) {
  return PrometheusText(node.core.TakeSnapshot(nullptr, node.clock.Now()), {},
                        audience);
}

std::set<std::string> Matches(const std::string& text, const char* pattern) {
  const std::regex wanted(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), wanted), end;
       at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

TEST(MetricLabels, LabelsNameGpusJobsAndUsersButNoProcess) {
  CoreDriver node;
  node.Attach("tune", 0);
  const std::string text = Scrape(node);
  EXPECT_THAT(
      Matches(text, "[{,](\\w+)=\""),
      IsSubsetOf({"UUID", "cgroup", "direction", "driver", "gpu", "kind", "le",
                  "link", "memory", "numa_node", "of", "parent", "reason",
                  "result", "sluice_job", "state", "uid", "version"}));
  EXPECT_THAT(text, HasSubstr("sluice_lease_bytes{gpu=\"0\",UUID=\"GPU-a\","
                              "sluice_job=\"tune\",uid=\"1\"} 0\n"));
  EXPECT_THAT(Scrape(node, Audience::kAnybody), Not(HasSubstr("sluice_job")));
}

TEST(MetricLabels, MemoryOutsideLeasesIsLabelledByJob) {
  NodeConfig config = SmallNode();
  config.driver = "cuda";
  CoreDriver node(config);
  const absl::Time now = node.clock.Now();
  node.Run([&](Core& core) {
    return core.OutsideKnown(
        {.at = now, .since = now, .beside = {{Gpu(0), MiB(1)}}}, now);
  });
  const SessionId a = node.Attach("tune", 0);
  EXPECT_THAT(Scrape(node), Not(HasSubstr("sluice_outside_lease_bytes{")));
  node.clock.Advance(absl::Seconds(1));
  node.Ask(a, GpuUseRequest{MiB(3)});
  EXPECT_THAT(Scrape(node),
              HasSubstr(fmt::format(
                  "sluice_outside_lease_bytes{{gpu=\"0\",UUID=\"GPU-a\","
                  "sluice_job=\"tune\",uid=\"1\"}} {}\n",
                  MiB(2).count())));
  EXPECT_THAT(Scrape(node, Audience::kAnybody),
              Not(HasSubstr("sluice_outside_lease_bytes{")));
}

TEST(MetricLabels, AnUnusableGpuIsMarked) {
  NodeConfig config = SmallNode();
  config.gpus[1].fault = "it is lost";
  const std::string text = Scrape(CoreDriver(config), Audience::kAnybody);
  EXPECT_THAT(text,
              HasSubstr("sluice_gpu_usable{gpu=\"0\",UUID=\"GPU-a\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("sluice_gpu_usable{gpu=\"1\",UUID=\"GPU-b\"} 0\n"));
}

TEST(MetricLabels, TheKindOfHostMemoryIsShownIfThereIsMoreThanOne) {
  const CoreDriver node;
  Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  const auto text = [&] {
    return PrometheusText(snapshot, {}, Audience::kAnybody);
  };
  EXPECT_THAT(text(), Not(HasSubstr("sluice_host_memory_info")));
  snapshot.host_memory = "memfd";
  EXPECT_THAT(text(), HasSubstr("sluice_host_memory_info{kind=\"memfd\"} 1\n"));
}

TEST(Metrics, LostLogLinesClosingDescriptorsAndWaitingLeasesAreCounted) {
  const CoreDriver node;
  Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  snapshot.log_lines_dropped = 2;
  snapshot.log_lines_suppressed = 3;
  snapshot.descriptors_closing = 4;
  snapshot.waiting = {{.lease = {.asked = {Host(0), Bytes(5)}}},
                      {.lease = {.asked = {Host(0), Bytes(6)}}}};
  const std::string text = PrometheusText(snapshot, {}, Audience::kAnybody);
  for (const char* line :
       {"sluice_log_lines_dropped_total 2",
        "sluice_log_lines_suppressed_total 3", "sluice_descriptors_closing 4",
        "sluice_waiting_leases{memory=\"host\"} 2",
        "sluice_waiting_bytes{memory=\"host\"} 11",
        "sluice_waiting_bytes{memory=\"gpu\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{}\n", line)));
  }
}

// The second session is closed: its memory counts, but the session is no rank.
TEST(JobMetrics, JobMetricsCombineTheFiguresOfRanks) {
  CoreDriver node;
  node.Attach("tune", 0, 2);
  node.Attach("tune", 1, 2);
  Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  JobSnapshot& job = snapshot.jobs.at(0);
  RankSnapshot& first = job.ranks.at(0);
  RankSnapshot& second = job.ranks.at(1);
  first.gpu_bytes = Bytes(1);
  first.host_bytes = Bytes(10);
  first.hbm_peak = Bytes(100);
  first.step = {.step = 7, .seconds = 3, .tokens = 300, .loss = 2.5};
  second.closed = true;
  second.gpu = DeviceIndex(1);
  second.gpu_bytes = Bytes(2);
  second.host_bytes = Bytes(20);
  second.hbm_peak = Bytes(90);
  second.step = {.step = 8, .seconds = 2, .tokens = 400, .loss = 2.25};
  const std::string label = "sluice_job=\"tune\",uid=\"1\"} ";
  const auto lines = [&](const std::vector<std::string>& wanted) {
    const std::string text = PrometheusText(snapshot, {}, Audience::kOperators);
    for (const std::string& line : wanted) {
      const size_t name = line.find(' ');
      const bool labels = line.find('{') != std::string::npos;
      EXPECT_THAT(text, HasSubstr(fmt::format(
                            "\n{}{}{}{}\n", line.substr(0, name),
                            labels ? "," : "{", label, line.substr(name + 1))));
    }
  };
  lines({R"(sluice_lease_bytes{gpu="0",UUID="GPU-a" 1)",
         R"(sluice_lease_bytes{gpu="1",UUID="GPU-b" 2)",
         "sluice_host_lease_bytes 30", "sluice_job_ranks 1",
         "sluice_job_step 8", "sluice_job_loss 2.5",
         "sluice_job_tokens_per_second 300", "sluice_job_hbm_peak_bytes 100",
         "sluice_job_alpha Nan"});
  const auto plan = [&](uint64_t id, std::vector<double> alphas,
                        const char* infeasible) {
    plan::NodePlan made;
    made.id = PlanId(id);
    made.infeasible = infeasible;
    for (const double alpha : alphas) {
      made.ranks.push_back({});
      made.ranks.back().alpha = alpha;
    }
    return PlanSnapshot{"tune", job.principal,
                        std::make_shared<const plan::NodePlan>(made)};
  };
  job.plan = PlanId(5);
  snapshot.plans = {plan(4, {0.125}, ""), plan(5, {0.75, 0.5}, "")};
  lines({"sluice_job_alpha 0.5"});
  snapshot.plans = {plan(5, {0.75, 0.5}, "too much")};
  lines({"sluice_job_alpha Nan"});
}

TEST(MetricLabels, CountsOfAnEndedJobStayForFiveMinutes) {
  CoreDriver node;
  const SessionId a = node.Attach("tune", 0);
  node.Ask(a, StepReport{.seconds = 7200});
  node.Die(a);
  const std::string job = "{sluice_job=\"tune\",uid=\"1\"";
  const std::string text = Scrape(node);
  EXPECT_THAT(text, HasSubstr("sluice_job_steps_total" + job + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("sluice_step_seconds_bucket" + job +
                              ",le=\"10800\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("sluice_job_ranks" + job)));
  node.clock.Advance(absl::Minutes(5));
  EXPECT_THAT(Scrape(node), Not(HasSubstr("tune")));
}

// Guards against one user that makes a series for each of many job names.
TEST(MetricLabels, AtMost256JobsAreNamedAndFurtherOnesAreOther) {
  CoreDriver node;
  for (int i = 0; i < 300; ++i) {
    const SessionId a = node.Attach(fmt::format("job{}", i), 0);
    node.Ask(a, StepReport{});
    // The process still lives, so the job does too.
    node.Run([&](Core& to) { return to.SocketEnded(a, node.clock.Now()); });
  }
  const std::string text = Scrape(node);
  EXPECT_EQ(Matches(text, "sluice_job=\"(\\w+)\"").size(), 257u);
  EXPECT_THAT(text, HasSubstr("sluice_job_steps_total{sluice_job=\"other\","
                              "uid=\"other\"} 44\n"));
}

}  // namespace
}  // namespace sluice::daemon
