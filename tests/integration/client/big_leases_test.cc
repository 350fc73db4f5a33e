// Tests leases of a whole node's size on the strict fake driver, with host
// memory that takes long to make, and is sparse. Only tests/bench/leases.py
// judges how long a lease takes.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {
namespace {

constexpr int kRanks = 8;
std::string TomlWith(const std::string& of_pools) {
  return "[device]\ndriver = \"cuda\"\n"
         "[gpus]\naccess = \"any\"\n"
         "[quota]\nextents = 1000\n"
         "[pools]\nhost_bytes = \"96GiB\"\nextent_bytes = \"1GiB\"\n" +
         of_pools;
}

class BigLeases : public ::testing::Test {
 protected:
  BigLeases() {
    setenv("LD_LIBRARY_PATH", InBuild("fake_cuda").c_str(), 1);
    // By default, pinning is four times as fast as an H100's 0.25 s per GiB.
    const char* const told = std::getenv("SLUICE_TEST_PIN_MS");
    setenv("SLUICE_FAKE_CUDA",
           fmt::format("memory_mib=4096,host_memory_mib=200000,dirty=0,"
                       "pin_ms_per_gib={},node={}",
                       told != nullptr ? told : "60", node_.path())
               .c_str(),
           1);
  }
  ~BigLeases() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("SLUICE_FAKE_CUDA");
  }

  std::unique_ptr<Child> Start(const std::string& socket, const char* job,
                               int rank, int ranks, int mib, int uid = 0) {
    return Child::Spawn({BinaryPath("cuda_leases"), socket, job,
                         std::to_string(rank), std::to_string(ranks),
                         std::to_string(mib), std::to_string(uid),
                         signs_.File(job), signs_.File("end")});
  }
  std::vector<std::unique_ptr<Child>> StartAll(const std::string& socket) {
    std::vector<std::unique_ptr<Child>> ranks;
    for (int i = 0; i < kRanks; ++i) {
      ranks.push_back(Start(socket, "big", i, kRanks, 8 << 10));
    }
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->WaitForOutput("open", absl::Seconds(60)));
    }
    return ranks;
  }
  void Go(const char* job) const { std::ofstream(signs_.File(job)) << "\n"; }
  // Waits until all ranks have their lease. Prints for tests/bench/leases.py
  // how long the slowest rank waited.
  static void ExpectLeased(const std::vector<std::unique_ptr<Child>>& ranks,
                           const char* when) {
    constexpr char kLeased[] = "leased in ";
    int slowest = 0;
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->WaitForOutput(" ms\n", absl::Seconds(90)))
          << rank->Join().err;
      const std::string said = rank->output();
      slowest = std::max(slowest, std::atoi(said.c_str() + said.find(kLeased) +
                                            sizeof(kLeased) - 1));
    }
    std::printf("%s: %d ms\n", when, slowest);
  }
  // Returns the names of the fake driver's files of memory that the daemon
  // made.
  std::set<std::string> Memory(const RunningDaemon& daemon) const {
    const std::string of_daemon = fmt::format("-{}-", daemon.pid());
    std::set<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(node_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.find(of_daemon) != name.npos) names.insert(name);
    }
    return names;
  }
  void Pause() const {
    const char* const told = std::getenv("SLUICE_TEST_PAUSE_S");
    absl::SleepFor(absl::Seconds(told != nullptr ? std::atoi(told) : 3));
  }

  TempDir node_, signs_;
};

TEST_F(BigLeases, ASmallLeaseIsServedBeforeBigLeasesAreComplete) {
  RunningDaemon daemon(TomlWith(""));
  const auto ranks = StartAll(daemon.socket());
  std::vector<std::unique_ptr<Child>> neighbour;
  neighbour.push_back(Start(daemon.socket(), "small", 0, 1, 64, /*uid=*/1));
  ASSERT_TRUE(neighbour[0]->WaitForOutput("open", absl::Seconds(60)));
  Go("big");
  absl::SleepFor(absl::Milliseconds(600));  // the daemon is in a driver call
  Go("small");
  ExpectLeased(neighbour, "a neighbour's, beside");
  int leased = 0;
  for (const auto& rank : ranks) {
    leased += rank->output().find("leased") != std::string::npos ? 1 : 0;
  }
  EXPECT_LT(leased, kRanks) << "the small lease waited for all big leases";
  ExpectLeased(ranks, "64 GiB, the first time");
  Go("end");
  for (const auto& rank : ranks) rank->ExpectSuccess();
  neighbour[0]->ExpectSuccess();
}

TEST_F(BigLeases, MemoryOfEndedAndKilledRunsIsLeasedAgain) {
  RunningDaemon daemon(TomlWith(""));
  Go("big");
  auto ranks = StartAll(daemon.socket());
  ExpectLeased(ranks, "64 GiB, without other leases");
  const std::set<std::string> memory = Memory(daemon);
  EXPECT_GE(memory.size(), 64u);
  Go("end");
  for (const auto& rank : ranks) rank->ExpectSuccess();
  Pause();
  std::filesystem::remove(signs_.File("end"));
  ranks = StartAll(daemon.socket());
  ExpectLeased(ranks, "64 GiB, after the run's end");
  EXPECT_EQ(Memory(daemon), memory);
  for (const auto& rank : ranks) rank->Kill(SIGKILL);
  for (const auto& rank : ranks) rank->Join();
  Pause();
  ranks = StartAll(daemon.socket());
  ExpectLeased(ranks, "64 GiB, after kill -9");
  EXPECT_EQ(Memory(daemon), memory);
  Go("end");
  for (const auto& rank : ranks) rank->ExpectSuccess();
}

TEST_F(BigLeases, MemoryMadeAheadIsKeptWhenARankLeases) {
  RunningDaemon daemon(TomlWith("host_ready_bytes = \"1GiB\"\n"));
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (Memory(daemon).empty() && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  Pause();
  const std::set<std::string> ahead = Memory(daemon);
  ASSERT_FALSE(ahead.empty());
  Go("big");
  std::vector<std::unique_ptr<Child>> rank;
  rank.push_back(Start(daemon.socket(), "big", 0, 1, 1 << 10));
  ExpectLeased(rank, "1 GiB, made ahead");
  EXPECT_TRUE(std::ranges::includes(Memory(daemon), ahead));
  Go("end");
  rank[0]->ExpectSuccess();
}

}  // namespace
}  // namespace sluice::testing
