// Tests the text of /metrics, without its HELP lines, on a node with many
// different values.
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "daemon/metrics/prometheus_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/golden.h"

namespace sluice::daemon {
namespace {

// Sets each field to a number of its own: 1001, 1002, ...
class Numbers {
 public:
  template <typename... Fields>
  void Fill(Fields&... fields) {
    (Set(fields), ...);
  }
  template <typename E>
  void FillCounts(CountsBy<E>& counts) {
    for (size_t i = 0; i < std::size(EnumNames<E>::kNames); ++i) {
      Set(counts[static_cast<E>(i)]);
    }
  }
  void Fill(PoolSnapshot& pool) {
    Fill(pool.leased, pool.free, pool.kept, pool.quarantined, pool.lingering,
         pool.outside, pool.ready, pool.reserved);
  }
  void Fill(LateDirections& late) {
    for (auto& way : late) {
      Fill(way.copies, way.seconds);
    }
  }

 private:
  void Set(Bytes& field) { field = Bytes(++last_); }
  template <typename Number>
  void Set(Number& field) {
    field = static_cast<Number>(++last_);
  }
  int last_ = 1000;
};

void FillStats(Numbers& numbers, Stats& stats) {
  numbers.Fill(stats.sessions_opened, stats.sessions_refused,
               stats.leases_granted, stats.waits_refused,
               stats.profiles_refused, stats.extents.made, stats.extents.reused,
               stats.extents.destroyed);
  numbers.FillCounts(stats.leases_refused);
  numbers.FillCounts(stats.waits);
  numbers.FillCounts(stats.client_deaths);
  numbers.FillCounts(stats.plans);
  numbers.FillCounts(stats.plan_changes);
  numbers.FillCounts(stats.plan_units);
  for (GpuStats& gpu : stats.gpus) {
    numbers.Fill(gpu.h2d, gpu.d2h);
    numbers.Fill(gpu.late);
  }
  for (Histogram* times : {&stats.lease_seconds, &stats.map_seconds,
                           &stats.plan_seconds, &stats.grant_wait_seconds}) {
    double value = 0;
    numbers.Fill(value);
    for (const double part : {0.0001, 0.02, 0.5, 40.0}) {
      times->Observe(value * part / 1000);
    }
  }
}

void FillQuotas(Numbers& numbers, QuotasSnapshot& quotas) {
  quotas.users = {{{1, ""}, {}}, {{2, "/c"}, {}}};
  for (size_t i = 0; i < kResources; ++i) {
    numbers.Fill(quotas.used[i], quotas.refused[i], quotas.shares[i].each,
                 quotas.shares[i].all, quotas.users[0].second[i]);
  }
  quotas.users[1].second[1] = 7;
}

Snapshot AllDifferent(const CoreDriver& node) {
  Snapshot s = node.core.TakeSnapshot(nullptr, node.clock.Now());
  Numbers numbers;
  for (GpuSnapshot& gpu : s.gpus) numbers.Fill(gpu.pool);
  for (PoolSnapshot& pool : s.hosts) numbers.Fill(pool);
  numbers.Fill(s.sessions, s.half_open, s.extents, s.log_lines_dropped,
               s.log_lines_suppressed, s.descriptors_closing,
               s.grant_stale_periods);
  s.sessions += 10'000;
  for (LinkSpeed& link : s.links) {
    numbers.Fill(link.h2d_bytes_per_second, link.d2h_bytes_per_second,
                 link.both_bytes_per_second);
  }
  s.links.at(1).parent = s.links[0].name;
  s.uptime = absl::Seconds(77);
  s.outside_at = s.now - absl::Seconds(78);
  s.host_memory = "memfd";
  s.kept = true;
  s.drain = Drain{};
  s.http.address = "127.0.0.1:9435";
  const auto waits = [](PoolId pool, int bytes, int seconds) {
    return WaitingSnapshot{.lease = {.asked = {pool, Bytes(bytes)}},
                           .elapsed = absl::Seconds(seconds)};
  };
  s.waiting = {waits(Host(0), 5, 3), waits(Host(0), 6, 2), waits(Gpu(1), 9, 4)};
  s.limits = {{LimitLine::Of::kEveryUser, {}, {Bytes(11), Bytes(0)}, {}},
              {LimitLine::Of::kUser,
               {.uid = 5, .cgroup = "/c"},
               {Bytes(12), Limits::kUnlimited},
               {}},
              {LimitLine::Of::kJob,
               {.uid = 6, .job = "j"},
               {Limits::kUnlimited, Bytes(13)},
               {}}};
  FillStats(numbers, *s.stats);
  FillQuotas(numbers, s.quotas);
  for (RankSnapshot& rank : s.jobs.at(0).ranks) {
    numbers.Fill(rank.gpu_bytes, rank.host_bytes, rank.hbm_peak, rank.weight);
    rank.outside = rank.hbm_peak + Bytes(10'000);
    rank.step = {.step = 7, .seconds = 3, .tokens = 3000, .loss = 2.5};
    PlanCopies& copies = rank.plan_copies.emplace();
    numbers.Fill(copies.demand.rates[0], copies.demand.rates[1],
                 copies.demand.step_bytes[0], copies.demand.step_bytes[1],
                 copies.promised[0], copies.promised[1]);
  }
  JobStats& job = s.stats->jobs.Of({s.jobs[0].principal, s.jobs[0].name});
  numbers.Fill(job.steps, job.tokens, job.stall_seconds, job.grant_wait_seconds,
               job.plan_mismatches);
  numbers.Fill(job.late);
  for (const double took : {0.02, 5.0, 500.0}) job.step_seconds.Observe(took);
  s.jobs[0].ranks[1].closed = true;
  return s;
}

TEST(MetricsText, TheTextMatchesItsGoldenFile) {
  CoreDriver node;
  node.Attach("tune", 0, 2);
  node.Attach("tune", 1, 2);
  const Snapshot snapshot = AllDifferent(node);
  const ProcessStats process = {.cpu_seconds = 1,
                                .resident_bytes = 2,
                                .virtual_bytes = 3,
                                .open_fds = 4,
                                .max_fds = 5,
                                .start_time_seconds = 6};
  const auto text = [&](Audience audience) {
    return std::regex_replace(PrometheusText(snapshot, process, audience),
                              std::regex("# HELP .*\n|(version=)\"[^\"]*\""),
                              "$1");
  };
  const std::string all = text(Audience::kOperators);
  testing::ExpectGolden(all, "tests/golden/daemon/metrics.txt");
  // Each line of the page for all users is in `all`, and names no user.
  std::istringstream lines(text(Audience::kAnybody));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(all, ::testing::HasSubstr(line));
    EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("uid=")));
  }
  EXPECT_NE(FrozenText(process).find("\nsluice_frozen 1\n"), std::string::npos);
}

}  // namespace
}  // namespace sluice::daemon
