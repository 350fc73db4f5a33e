// The fast path of a grant: 8 ranks as processes, each with its session and
// its pages, all taking grants at once while the daemon refills and beats.
#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <ctime>
#include <memory>
#include <vector>

#include "client/session/session.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::bench {
namespace {

using testing::Child;
using testing::RunningDaemon;

constexpr int kRanks = 8;
constexpr int kCalls = 200'000;
constexpr int kWarmUp = 1'000;
constexpr Bytes kCopy = KiB(4);

// Shared by the ranks; a call's nanoseconds, clock included.
struct Shared {
  std::atomic<int> ready;
  uint32_t nanoseconds[kRanks][kCalls];
  uint64_t waited[kRanks];
};

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void Rank(const RunningDaemon& daemon, int rank, Shared* shared) {
  const auto session =
      client::Session::Open({.socket = daemon.socket(),
                             .job = "bench",
                             .rank = sluice::Rank(static_cast<uint64_t>(rank)),
                             .world_size = kRanks,
                             .local_ranks = kRanks,
                             .gpu = DeviceIndex(static_cast<uint64_t>(rank))});
  SLUICE_CHECK_OK(session.status());
  client::GrantGate& gate = (*session)->grants();
  for (int i = 0; i < kWarmUp; ++i) gate.Acquire(kH2d, kCopy);
  shared->ready.fetch_add(1);
  while (shared->ready.load() < kRanks) {
    const timespec nap = {0, 100'000};
    nanosleep(&nap, nullptr);
  }
  for (int i = 0; i < kCalls; ++i) {
    const int64_t begin = Now();
    const absl::Duration waited = gate.Acquire(i & 1, kCopy);
    shared->nanoseconds[rank][i] = static_cast<uint32_t>(Now() - begin);
    if (waited > absl::ZeroDuration()) ++shared->waited[rank];
  }
}

double ClockCost() {
  std::vector<double> costs;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t begin = Now();
    costs.push_back(static_cast<double>(Now() - begin));
  }
  return Quantile(costs, 0.5);
}

std::vector<Entry> Measure() {
  // Links without a limit: what is measured is the path without waiting.
  const RunningDaemon daemon(R"(
[sim]
gpus = 8
links = [{name = "x", h2d_bytes_per_s = 0, d2h_bytes_per_s = 0}]
gpu_links = ["x", "x", "x", "x", "x", "x", "x", "x"]
)");
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  SLUICE_CHECK(page != MAP_FAILED);
  auto* shared = static_cast<Shared*>(page);
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(Child::Fork([&, rank] { Rank(daemon, rank, shared); }));
  }
  for (const auto& rank : ranks) {
    SLUICE_CHECK(rank->Join().exit_code == 0);
  }
  std::vector<double> all;
  uint64_t waited = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    waited += shared->waited[rank];
    all.insert(all.end(), shared->nanoseconds[rank],
               shared->nanoseconds[rank] + kCalls);
  }
  const std::string detail = fmt::format(
      "{} ranks x {} grants, two clock reads ({:.0f} ns) included; {} waited",
      kRanks, kCalls, ClockCost(), waited);
  const double p99 = Quantile(all, 0.99);
  return {{"grant p50", Quantile(all, 0.5), "ns", std::nullopt, true, detail},
          {"grant p99", p99, "ns", 1000, true, detail}};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
