#include "tests/daemon/bandwidth/bench_sim.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <deque>
#include <memory>

#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"

namespace sluice::bench {
namespace {

using testing::Child;
using testing::RunningDaemon;

constexpr int kRanks = 8;
constexpr double kSwitch = 100e6;  // per direction; slow enough for 2 cores
constexpr Bytes kCopy = MiB(1);
constexpr int kCopies = 120;
constexpr double kWarmUp = 1.5;  // s; uses up what Attach granted

// Shared by the ranks. `ready` counts each rank once when it has opened its
// session, and once more when it was measured. Times are seconds of the
// monotonic clock.
struct Shared {
  std::atomic<int> ready;
  double began[kRanks], ended[kRanks];
};

std::string Toml() {
  std::string links, on;
  for (int i = 0; i < kRanks; ++i) {
    links += fmt::format(
        "{{name = \"gpu{0}\", parent = \"switch{1}\", h2d_bytes_per_s = {2}, "
        "d2h_bytes_per_s = {2}}}, ",
        i, i / 2, kSwitch);
    on += fmt::format("\"gpu{}\", ", i);
  }
  for (int i = 0; i < kRanks / 2; ++i) {
    links += fmt::format(
        "{{name = \"switch{0}\", h2d_bytes_per_s = {1}, d2h_bytes_per_s = "
        "{1}}}, ",
        i, kSwitch);
  }
  return fmt::format("[sim]\ngpus = {}\nlinks = [{}]\ngpu_links = [{}]\n",
                     kRanks, links, on);
}

// Issues copies in both directions, two requested ahead in each direction.
class BothWays {
 public:
  explicit BothWays(client::Session& session) : session_(session) {
    SLUICE_CHECK_OK(Prepare());
  }

  void CopyOne() {
    std::byte* const gpu = gpu_->data();
    std::byte* const host = host_->data();
    const auto other = kCopy.count();
    Enqueue(device::CopyDirection::kHostToDevice, gpu, host);
    Enqueue(device::CopyDirection::kDeviceToHost, host + other, gpu + other);
    while (tickets_.size() > 4) WaitForOldest();
  }
  void Finish() {
    while (!tickets_.empty()) WaitForOldest();
  }

 private:
  absl::Status Prepare() {
    SLUICE_ASSIGN_OR_RETURN(gpu_, session_.LeaseGpu(2 * kCopy));
    SLUICE_ASSIGN_OR_RETURN(host_, session_.LeaseHost(2 * kCopy));
    SLUICE_ASSIGN_OR_RETURN(
        engine_, client::CopyEngine::Start({.driver = &session_.driver(),
                                            .device = session_.limits().device,
                                            .gate = &session_.grants(),
                                            .slice = kCopy}));
    return absl::OkStatus();
  }
  void Enqueue(device::CopyDirection direction, std::byte* to,
               const std::byte* from) {
    tickets_.push_back(engine_->Enqueue(
        {.direction = direction, .pieces = {{to, from, kCopy}}}));
  }
  void WaitForOldest() {
    SLUICE_CHECK_OK(engine_->Wait(tickets_.front()));
    tickets_.pop_front();
  }

  client::Session& session_;
  std::unique_ptr<client::Region> gpu_, host_;
  std::unique_ptr<client::CopyEngine> engine_;
  std::deque<client::Ticket> tickets_;
};

void RunRank(const RunningDaemon& daemon, int rank, Shared* shared) {
  const auto session =
      client::Session::Open({.socket = daemon.socket(),
                             .job = "bench",
                             .rank = sluice::Rank(static_cast<uint64_t>(rank)),
                             .world_size = kRanks,
                             .local_ranks = kRanks,
                             .gpu = DeviceIndex(static_cast<uint64_t>(rank))});
  SLUICE_CHECK(session.ok());
  BothWays copies(**session);
  shared->ready.fetch_add(1);
  while (shared->ready.load() < kRanks) {
    const timespec nap = {0, 100'000};
    nanosleep(&nap, nullptr);
  }
  const double warm = MonotonicSeconds() + kWarmUp;
  while (MonotonicSeconds() < warm) copies.CopyOne();
  shared->began[rank] = MonotonicSeconds();
  for (int i = 0; i < kCopies; ++i) copies.CopyOne();
  copies.Finish();
  shared->ended[rank] = MonotonicSeconds();
  // Keeps copying, so that the ranks still measured do not get a larger share.
  shared->ready.fetch_add(1);
  while (shared->ready.load() < 2 * kRanks) copies.CopyOne();
  copies.Finish();
}

}  // namespace

std::vector<Entry> EightGpusOnAClock() {
  const RunningDaemon daemon(Toml());
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  SLUICE_CHECK(page != MAP_FAILED);
  auto* shared = static_cast<Shared*>(page);
  std::vector<std::unique_ptr<Child>> ranks;
  ranks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(Child::Fork([&, rank] { RunRank(daemon, rank, shared); }));
  }
  for (const auto& rank : ranks) {
    SLUICE_CHECK(rank->Join().exit_code == 0);
  }
  double least = 1e9, most = 0, rates = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const double took = shared->ended[rank] - shared->began[rank];
    least = std::min(least, took);
    most = std::max(most, took);
    rates += 2.0 * kCopies * static_cast<double>(kCopy.count()) / took;
  }
  munmap(page, sizeof(Shared));
  const std::string detail = fmt::format(
      "wall clock, a real daemon: {} MiB each way took {:.3f} to {:.3f} s",
      kCopies * kCopy.count() >> 20, least, most);
  return {{"8 GPUs on sim, finish apart", 100 * (most - least) / most, "%",
           std::nullopt, true, detail},
          {"8 GPUs on sim, of the links", 100 * rates / (8 * kSwitch), "%",
           std::nullopt, false, detail}};
}

}  // namespace sluice::bench
