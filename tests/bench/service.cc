// The daemon under load: 64 sessions that lease and free in an open loop, and
// how long a lease takes while the ranks of all GPUs are killed.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "proto/base/status.h"
#include "tests/bench/open_loop.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::bench {
namespace {

using testing::Child;
using testing::RawClient;
using testing::RunningDaemon;

constexpr int kGpus = 8;
constexpr int kRounds = 5;  // of the open loop; the median counts
constexpr OpenLoop kLoad = {
    .sessions = 64, .pairs_per_second = 10'000, .pairs = 40'000};
constexpr int kKills = 25;  // rounds of the second, each of all GPUs
constexpr int kLeasesPerKill = 40;

constexpr char kNode[] = R"(
[sim]
gpus = 8
gpu_memory = "1GiB"
)";

// Apart where there is more than one core.
void PinApart(int core) {
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  SLUICE_CHECK(testing::PinThisProcess(core % cores));
}

RawClient Attach(const RunningDaemon& daemon, const std::string& job, int gpu) {
  auto client = RawClient::Connect(daemon.socket());
  SLUICE_CHECK_OK(client.status());
  SLUICE_CHECK_OK(client->Hello(job, 0, 1, gpu).status());
  return *std::move(client);
}

std::string Each(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", value);
  }
  return text;
}

Entry LeaseFreePairs() {
  std::vector<double> p50, p99, most;
  for (int round = 0; round < kRounds; ++round) {
    PinApart(0);  // so that each thread of the daemon is
    const RunningDaemon daemon(kNode);
    PinApart(1);
    std::vector<RawClient> clients;
    for (int i = 0; i < kLoad.sessions; ++i) {
      clients.push_back(Attach(daemon, fmt::format("load{}", i), i % kGpus));
    }
    std::vector<double> millis = PairMillis(kLoad, clients);
    p50.push_back(Quantile(millis, 0.5));
    p99.push_back(Quantile(millis, 0.99));
    most.push_back(millis.back());
  }
  const std::string each = Each(p99);
  return {"service pairs p99",
          Quantile(p99, 0.5),
          "ms",
          2,
          true,
          fmt::format("{} sessions, {} pairs of lease and free a second in "
                      "all, from the time each was due; pinned apart; median "
                      "of {} ({}); p50 {:.3f}, maximum {:.1f} ms",
                      kLoad.sessions, kLoad.pairs_per_second, kRounds, each,
                      Quantile(p50, 0.5), Quantile(most, 1))};
}

// A rank of each GPU, which holds most of its memory until it is killed.
std::vector<std::unique_ptr<Child>> HoldAllGpus(const RunningDaemon& daemon,
                                                int round) {
  std::vector<std::unique_ptr<Child>> ranks;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    ranks.push_back(Child::Fork([&daemon, round, gpu] {
      RawClient rank =
          Attach(daemon, fmt::format("killed{}.{}", round, gpu), gpu);
      const auto lease = rank.Lease(wire::Lease::GPU, MiB(900), gpu);
      SLUICE_CHECK_OK(lease.status());
      fmt::print("leased\n");
      std::fflush(stdout);
      pause();
    }));
  }
  for (const auto& rank : ranks) {
    if (!rank->WaitForOutput("leased", absl::Seconds(30))) {
      fmt::print(stderr, "{}", rank->Join().err);
      std::abort();
    }
  }
  return ranks;
}

Entry LeasesWhileRanksDie() {
  const RunningDaemon daemon(kNode);
  RawClient honest = Attach(daemon, "honest", 0);
  std::vector<double> millis;
  for (int round = 0; round < kKills; ++round) {
    const auto ranks = HoldAllGpus(daemon, round);
    for (const auto& rank : ranks) rank->Kill(SIGKILL);
    for (int i = 0; i < kLeasesPerKill; ++i) {
      const absl::Time start = absl::Now();
      auto lease = honest.Lease(wire::Lease::GPU, MiB(64));
      millis.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
      SLUICE_CHECK_OK(lease.status());
      lease->fds.clear();
      SLUICE_CHECK_OK(honest.Free(lease->body.granted().lease_id()).status());
    }
  }
  const double p99 = Quantile(millis, 0.99);
  return {"service lease p99 in deaths",
          p99,
          "ms",
          50,
          true,
          fmt::format("64 MiB, {} of them, each {} while {} ranks of 900 MiB "
                      "are killed and reclaimed; p50 {:.2f}, maximum {:.1f} ms",
                      millis.size(), kLeasesPerKill, kGpus,
                      Quantile(millis, 0.5), millis.back())};
}

std::vector<Entry> Measure() {
  return {LeasesWhileRanksDie(), LeaseFreePairs()};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
