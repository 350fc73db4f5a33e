// Measures the fast path of a grant: 8 rank processes, each with its own
// session and pages, take grants together, and the daemon raises their limits.
// Measures also the time that grants add to queued copies
// (client/copy/granted_ahead.h).
#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <ctime>
#include <memory>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/temp_dir.h"

namespace sluice::bench {
namespace {

using testing::Child;
using testing::RunningDaemon;

constexpr int kRanks = 8;
constexpr int kCalls = 200'000;
constexpr int kWarmUp = 1'000;
constexpr Bytes kCopy = KiB(4);

// Memory that the ranks share.
struct Shared {
  std::atomic<int> ready;
  uint32_t nanoseconds[kRanks][kCalls];  // of each call and its clock reads
  uint64_t waited[kRanks];               // number of calls that waited
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

constexpr int kQueued = 64;
constexpr Bytes kQueuedCopy = KiB(64);  // also the size of a copy's slices
constexpr double kLinkSpeed = 1e9;      // a queued copy takes 66 us
constexpr int kRounds = 25;

// Host and GPU memory of a simulated node to copy between.
class Link {
 public:
  Link() {
    SLUICE_CHECK_OK(device::CreateSimNode(
        directory_.path(), {.gpus = {{MiB(8), "x", NumaIndex(0)}},
                            .links = {{"x", kLinkSpeed, kLinkSpeed}},
                            .host_memory = MiB(8)}));
    auto driver = device::OpenSimDriver(directory_.path());
    SLUICE_CHECK_OK(driver.status());
    driver_ = *std::move(driver);
    gpu_ = Map(device::Placement::Gpu(DeviceIndex(0)));
    host_ = Map(device::Placement::Host(NumaIndex(0)));
  }

  std::unique_ptr<client::CopyEngine> Start(client::GrantGate* gate) {
    auto engine = client::CopyEngine::Start(
        {.driver = driver_.get(), .gate = gate, .slice = kQueuedCopy});
    SLUICE_CHECK_OK(engine.status());
    return *std::move(engine);
  }

  // Returns the share of the link's speed that consecutive large copies reach.
  double Share(client::CopyEngine& engine) {
    constexpr int kLarge = 4;
    const Bytes size = kQueued * kQueuedCopy;
    const int64_t begin = Now();
    for (int i = 0; i < kLarge; ++i) {
      engine.Enqueue({.pieces = {{gpu_, host_, size}}});
    }
    SLUICE_CHECK_OK(engine.Drain());
    return kLarge * static_cast<double>(size.count()) / kLinkSpeed /
           (1e-9 * static_cast<double>(Now() - begin));
  }

  // Returns the microseconds per copy of `kQueued` copies enqueued together.
  double Time(client::CopyEngine& engine) {
    const int64_t begin = Now();
    for (int i = 0; i < kQueued; ++i) {
      const int64_t at = i * kQueuedCopy.count();
      engine.Enqueue({.pieces = {{gpu_ + at, host_ + at, kQueuedCopy}}});
    }
    SLUICE_CHECK_OK(engine.Drain());
    return 1e-3 * static_cast<double>(Now() - begin) / kQueued;
  }

 private:
  std::byte* Map(device::Placement where) {
    const Bytes size = kQueued * kQueuedCopy;
    const auto memory = driver_->Create(where, size);
    const auto address = driver_->Reserve(size, where.kind);
    SLUICE_CHECK_OK(driver_->Map(*address, size, *memory));
    SLUICE_CHECK_OK(driver_->SetAccess(*address, size, DeviceIndex(0)));
    return *address;
  }

  const testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
  std::byte* gpu_ = nullptr;
  std::byte* host_ = nullptr;
};

// A gate with a limit that never makes a copy wait.
struct OpenGate {
  OpenGate() { limits.slots[0].limit_bytes[kH2d] = UINT64_MAX; }
  GrantLimits limits = {};
  GrantUse use = {};
  const MonotonicClock clock;
  client::GrantGate gate{&limits, 0, &use, &clock};
};

// Measures copies with and without grants in turns.
Entry MeasureAdded() {
  OpenGate open;
  Link link;
  const auto granted = link.Start(&open.gate);
  // As in a training step, the engine knows how soon each copy is needed.
  granted->KnowSlack({{"", absl::Milliseconds(1)}});
  const auto free = link.Start(nullptr);
  std::vector<double> added;
  std::vector<double> alone;
  for (int i = 0; i < Rounds(kRounds); ++i) {
    alone.push_back(link.Time(*free));
    added.push_back(link.Time(*granted) - alone.back());
  }
  return {"grant, added to a queued copy",
          Quantile(added, 0.5),
          "us",
          20,
          true,
          fmt::format("{} copies of {} KiB at once, {:.1f} us each without "
                      "grants; median of {} rounds in turns",
                      kQueued, kQueuedCopy.count() / 1024, Quantile(alone, 0.5),
                      Rounds(kRounds))};
}

// Simulates a fast link, on which a slice ends before the host checks again.
Entry MeasureShare() {
  OpenGate open;
  Link link;
  const auto engine = link.Start(&open.gate);
  std::vector<double> shares;
  for (int i = 0; i < Rounds(kRounds); ++i) {
    shares.push_back(100 * link.Share(*engine));
  }
  return {
      "grant, of a link's speed in slices",
      Quantile(shares, 0.5),
      "%",
      95,
      false,
      fmt::format("slices of {} KiB at {:.0f} GB/s: {:.0f} us each, as of 4 "
                  "MiB at 64 GB/s; median of {} rounds",
                  kQueuedCopy.count() / 1024, kLinkSpeed / 1e9,
                  1e6 * static_cast<double>(kQueuedCopy.count()) / kLinkSpeed,
                  Rounds(kRounds))};
}

std::vector<Entry> Measure() {
  const Entry added = MeasureAdded();
  const Entry share = MeasureShare();
  // The links have no limit, so no grant has to wait.
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
          {"grant p99", p99, "ns", 1000, true, detail},
          added,
          share};
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::Report(argc, argv, sluice::bench::Measure);
}
