// A node on cuda as processes: the real sluiced and ranks of libsluice, each on
// the strict fake driver (tests/fake_cuda), which exits with 86 if a rule was
// broken, copies raced or anything was left. It proves nothing about a GPU.
#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"
#include "tests/support/under_keeper.h"
#include "tests/support/whole_lines.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// The daemon decides by device nodes which ranks may use a GPU. The fake has no
// device nodes, so all ranks may use all GPUs.
constexpr char kToml[] =
    "[device]\ndriver = \"cuda\"\n"
    "[gpus]\naccess = \"any\"\n"
    "[pools]\ngpu_bytes = \"32MiB\"\nhost_bytes = \"64MiB\"\n"
    "extent_bytes = \"4MiB\"\n";

// Parameters: whether the driver makes host memory, and the longest delay of a
// stream's operation in microseconds.
class OfCuda : public ::testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  // All processes share one node in the test's folder. The file `findings`
  // there has the findings of all of them.
  OfCuda() {
    setenv("LD_LIBRARY_PATH", InBuild("fake_cuda").c_str(), 1);
    SetDriver(std::get<0>(GetParam()));
  }
  ~OfCuda() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("SLUICE_FAKE_CUDA");
  }

  // Applies to processes that start from now on.
  void SetDriver(bool host_numa, const std::string& more = "") const {
    setenv("SLUICE_FAKE_CUDA",
           fmt::format("gpus=2,host_numa={},jitter_us={},node={}{}",
                       host_numa ? 1 : 0, std::get<1>(GetParam()), node_.path(),
                       more)
               .c_str(),
           1);
  }
  std::unique_ptr<Child> StartRank(const std::string& socket, int rank) {
    return Child::Spawn({BinaryPath("cuda_rank"), socket, std::to_string(rank),
                         std::to_string(rank), until()});
  }
  std::string until() const { return signs_.File("end"); }
  void LetRanksEnd() const { std::ofstream(until()) << "\n"; }
  void LoseGpu(int gpu) const {
    std::ofstream(node_.File(fmt::format("lost-gpu{}", gpu))) << "\n";
  }
  std::string Findings() const {
    std::ifstream file(node_.File("findings"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void ForgetFindings() const {
    std::filesystem::remove(node_.File("findings"));
  }
  // Returns whether a process holds memory of GPU `gpu`.
  bool HasMemoryOfGpu(int gpu) const {
    for (const auto& entry :
         std::filesystem::directory_iterator(node_.path())) {
      if (entry.path().filename().string().starts_with(
              fmt::format("memory-1-{}-", gpu))) {
        return true;
      }
    }
    return false;
  }

 private:
  TempDir node_, signs_;
};

void ExpectAllIsFree(const std::string& socket) {
  for (const int gpu : {0, 1}) {
    EXPECT_THAT(WaitUntilFree(socket, gpu, absl::Seconds(20)), IsOk());
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool host, HostPool(socket, 0));
  EXPECT_EQ(host.leased_bytes(), 0u);
  EXPECT_EQ(host.free_bytes(), host.total_bytes());
}

void ExpectEndsWell(RunningDaemon& daemon) {
  daemon.process().Kill(SIGTERM);
  daemon.process().ExpectSuccess();
}

TEST_P(OfCuda, TwoRanksCopyThereAndBackAndNothingIsLeft) {
  RunningDaemon daemon(kToml);
  EXPECT_EQ(daemon.ReadyField("driver"), "cuda");
  const auto first = StartRank(daemon.socket(), 0);
  const auto second = StartRank(daemon.socket(), 1);
  EXPECT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  EXPECT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  // Guards against a run on another driver, which would leave no files here.
  EXPECT_TRUE(HasMemoryOfGpu(0));
  EXPECT_TRUE(HasMemoryOfGpu(1));
  LetRanksEnd();
  first->ExpectSuccess();
  second->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

TEST_P(OfCuda, AKilledRanksMemoryBecomesFreeAndTheOtherRankGoesOn) {
  RunningDaemon daemon(kToml);
  const auto first = StartRank(daemon.socket(), 0);
  const auto second = StartRank(daemon.socket(), 1);
  ASSERT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  first->Kill(SIGKILL);
  EXPECT_EQ(first->Join().signal, SIGKILL);
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(20)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool other,
                              GpuPool(daemon.socket(), 1));
  EXPECT_GT(other.leased_bytes(), 0u);
  LetRanksEnd();  // the second rank copies once more before it ends
  second->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

// A daemon that takes over has only descriptors: it imports the GPU memory and
// the host memory that the dead daemon made.
class TakenOver : public OfCuda {
 protected:
  TakenOver() {
    std::ofstream(config_) << kToml << "[http]\nlisten = \"\"\n"
                           << "[restart]\nfreeze_after = 0\n";
  }
  UnderKeeper::Of Config() const { return {.more = {"--config", config_}}; }

 private:
  const TempDir folder_;
  const std::string config_ = folder_.File("sluiced.toml");
};

TEST_P(TakenOver, RanksStillCopyUnderTheNextDaemon) {
  UnderKeeper daemon(Config());
  const auto first = StartRank(daemon.socket(), 0);
  const auto second = StartRank(daemon.socket(), 1);
  ASSERT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  daemon.daemon(daemon.KillDaemon());
  ASSERT_TRUE(daemon.WaitForLog("took over 2 sessions")) << daemon.Log();
  for (const int gpu : {0, 1}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool pool,
                                GpuPool(daemon.socket(), gpu));
    EXPECT_EQ(pool.leased_bytes(), MiB(8).size());
  }
  LetRanksEnd();
  first->ExpectSuccess();
  second->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  EXPECT_TRUE(daemon.End());  // the fake reports leftovers at the end
  EXPECT_EQ(Findings(), "") << daemon.Log();
}

// Guards against a daemon that exports imported memory, which an H100 refuses.
TEST_P(TakenOver, MemoryThatWasTakenOverCanBeLeasedAgain) {
  UnderKeeper daemon(Config());
  for (const int times : {1, 2}) {
    const auto dead = StartRank(daemon.socket(), 0);
    ASSERT_TRUE(dead->WaitForOutput("same", absl::Seconds(30)));
    daemon.daemon(daemon.KillDaemon());
    ASSERT_TRUE(daemon.WaitForLog("took over 1 session ", times))
        << daemon.Log();
    dead->Kill(SIGKILL);
    dead->Join();
    EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(20)), IsOk());
  }
  const auto next = StartRank(daemon.socket(), 0);
  EXPECT_TRUE(next->WaitForOutput("same", absl::Seconds(30)));
  LetRanksEnd();
  next->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  EXPECT_TRUE(daemon.End());
  EXPECT_EQ(Findings(), "") << daemon.Log();
}

TEST_P(OfCuda, ADaemonThatEndsDuringAHungCallLeavesNoSocket) {
  // If the driver makes host memory, the daemon calls cuMemCreate at its start.
  if (std::get<0>(GetParam())) return;
  SetDriver(false, ",hang=cuMemCreate:1");
  RunningDaemon daemon(kToml);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("job"), IsOk());
  std::thread lease(
      [&client] { EXPECT_FALSE(client.Lease(wire::Lease::GPU, MiB(4)).ok()); });
  absl::SleepFor(absl::Seconds(1));  // until the call hangs
  ExpectEndsWell(daemon);
  EXPECT_FALSE(std::filesystem::exists(daemon.socket()));
  lease.join();
}

// Guards against a daemon that freezes at a takeover because a GPU is lost.
TEST_P(TakenOver, ALostGpusMemoryIsNamedAndTheOtherRankGoesOn) {
  UnderKeeper daemon(Config());
  const auto first = StartRank(daemon.socket(), 0);
  const auto second = StartRank(daemon.socket(), 1);
  ASSERT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  LoseGpu(0);
  daemon.daemon(daemon.KillDaemon());
  ASSERT_TRUE(daemon.WaitForLog("took over 2 sessions")) << daemon.Log();
  EXPECT_THAT(daemon.Log(), HasSubstr("8 MiB of GPU 0 are held by rank 0"));
  LetRanksEnd();
  EXPECT_EQ(first->Join().exit_code, 1);
  second->ExpectSuccess();
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 1, absl::Seconds(20)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool lost,
                              GpuPool(daemon.socket(), 0));
  EXPECT_EQ(lost.leased_bytes() + lost.quarantined_bytes(), 0u);
  EXPECT_TRUE(daemon.End());
  EXPECT_EQ(Findings(), "") << daemon.Log();
}

TEST_P(OfCuda, ALostGpuGivesOneErrorLineAndTheOtherRankGoesOn) {
  RunningDaemon daemon(kToml);
  const auto first = StartRank(daemon.socket(), 0);
  const auto second = StartRank(daemon.socket(), 1);
  ASSERT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  LoseGpu(0);
  LetRanksEnd();
  const ChildResult lost = first->Join();
  EXPECT_EQ(lost.exit_code, 1) << lost.err;
  EXPECT_THAT(lost.err,
              MatchesRegex("error: [^\n]*DEVICE_UNAVAILABLE[^\n]*\n"));
  second->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

// Guards against host leases that fail one by one with an import's error. A
// rank can pin memfds whatever memory its driver makes, and does so if the
// daemon's host memory is memfds.
TEST_P(OfCuda, ARankWithAnotherKindOfHostMemoryUsesMemfdOrIsRefusedAtOnce) {
  const bool host_numa = std::get<0>(GetParam());
  RunningDaemon daemon(kToml);
  SetDriver(!host_numa);
  const auto rank = StartRank(daemon.socket(), 0);
  if (host_numa) {
    const ChildResult other = rank->Join();
    EXPECT_EQ(other.exit_code, 1) << other.err;
    EXPECT_EQ(other.err,
              "error: sluiced has host memory of kind HOST_NUMA, and this "
              "process could map only memfd (the driver offers no HOST_NUMA "
              "memory): let both see the same GPUs and driver library, in "
              "containers with the same seccomp profile and capabilities\n");
  } else {
    ASSERT_TRUE(rank->WaitForOutput("same", absl::Seconds(30)));
    LetRanksEnd();
    rank->ExpectSuccess();
  }
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

std::string Ctl(const std::string& socket,
                const std::vector<std::string>& what) {
  std::vector<std::string> words = {BinaryPath("sluicectl"), "--socket",
                                    socket};
  words.insert(words.end(), what.begin(), what.end());
  return Child::Spawn(words)->Join().out;
}

TEST_P(OfCuda, AGpuThatIsLostAtTheStartIsNamedAndTheOtherIsServed) {
  LoseGpu(0);
  RunningDaemon daemon(kToml);
  const auto second = StartRank(daemon.socket(), 1);
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  const ChildResult lost = StartRank(daemon.socket(), 0)->Join();
  EXPECT_EQ(lost.exit_code, 1);
  constexpr char kFault[] = "GPU 0 does not answer";
  EXPECT_THAT(lost.err, AllOf(HasSubstr(kFault), HasSubstr("nvidia-smi -q")));
  EXPECT_THAT(WholeLines(Ctl(daemon.socket(), {"status"})), HasSubstr(kFault));
  EXPECT_THAT(Ctl(daemon.socket(), {"doctor"}),
              MatchesRegex("(.|\n)*GPU 0 does not answer[^\n]*\n"
                           " *\\$ nvidia-smi -q\n(.|\n)*"));
  LetRanksEnd();
  second->ExpectSuccess();
  daemon.process().Kill(SIGTERM);
  const ChildResult end = daemon.process().Join();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.err, HasSubstr(kFault));
  EXPECT_EQ(Findings(), "");
}

// GPUs are numbered as by nvidia-smi, not by their speed.
TEST_P(OfCuda, GpusAreNumberedInPciBusOrder) {
  SetDriver(true, ",fastest_last=1");
  RunningDaemon daemon(kToml);
  EXPECT_THAT(Ctl(daemon.socket(), {"status", "--json"}),
              HasSubstr("\"index\":0,\"kept_bytes\":0,\"leased_bytes\":0,"
                        "\"lingering_bytes\":0,\"link\":\"pci-0000:3a:00.0\""));
  ExpectEndsWell(daemon);
}

// The C ABI computes on the stream that its caller passes. The session's GPU is
// found by its UUID, whatever number the process gives it.
TEST_P(OfCuda, TheCAbiComputesOnTheCallersStreams) {
  setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
  RunningDaemon daemon(kToml);
  unsetenv("CUDA_VISIBLE_DEVICES");
  const auto run = [&](const std::string& left_out) {
    return Child::Spawn(
               {BinaryPath("cuda_streams"), daemon.socket(), "1", left_out})
        ->Join();
  };
  const ChildResult whole = run("");
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.out,
            "GPU 1 of the node is 0 here\n"
            "0 bytes are not those of the last fill\n");
  EXPECT_EQ(Findings(), "");
  // With `unready` no query finds an event reached. Otherwise a copy that ends
  // early would hide the missing step.
  SetDriver(std::get<0>(GetParam()), ",unready=1");
  for (const char* step : {"mark", "wait", "use", "order"}) {
    SCOPED_TRACE(step);
    const ChildResult without = run(step);
    EXPECT_EQ(without.exit_code, 86);
    EXPECT_THAT(without.err, HasSubstr("is not ordered after"));
    ForgetFindings();
  }
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
}

class BesideLeases : public OfCuda {
 protected:
  static wire::Pool Gpu0(const RunningDaemon& daemon) {
    auto pool = GpuPool(daemon.socket(), 0);
    EXPECT_THAT(pool, IsOk());
    EXPECT_EQ(pool->total_bytes(), pool->leased_bytes() + pool->free_bytes() +
                                       pool->held_outside_bytes());
    return *std::move(pool);
  }
  static void ExpectOutside(const RunningDaemon& daemon, Bytes wanted) {
    const absl::Time patience = absl::Now() + absl::Seconds(20);
    while (Gpu0(daemon).held_outside_bytes() != wanted.size() &&
           absl::Now() < patience) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_EQ(Gpu0(daemon).held_outside_bytes(), wanted.size());
  }
};

// The pool leaves 32 of the GPU's 64 MiB for memory outside leases. Guards
// against pool memory that counts as free though another process has taken it.
TEST_P(BesideLeases, MemoryOutsideLeasesBeyondTheReserveIsNotFree) {
  RunningDaemon daemon(kToml);
  const auto rank = StartRank(daemon.socket(), 0);
  ASSERT_TRUE(rank->WaitForOutput("same", absl::Seconds(30)));
  const auto beside =
      Child::Spawn({BinaryPath("cuda_holder"), "0", "40", until()});
  ASSERT_TRUE(beside->WaitForOutput("holds", absl::Seconds(30)));
  ExpectOutside(daemon, MiB(8));
  EXPECT_EQ(Gpu0(daemon).free_bytes(), MiB(16).size());  // the rank has 8 MiB
  LetRanksEnd();
  beside->ExpectSuccess();
  rank->ExpectSuccess();
  ExpectAllIsFree(daemon.socket());
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

TEST_P(BesideLeases, MemoryOutsideLeasesIsSeenWhileAnotherGpuIsLost) {
  RunningDaemon daemon(kToml);
  LoseGpu(1);
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  const auto beside =
      Child::Spawn({BinaryPath("cuda_holder"), "0", "40", until()});
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(beside->WaitForOutput("holds", absl::Seconds(30)));
  ExpectOutside(daemon, MiB(8));
  LetRanksEnd();
  beside->ExpectSuccess();
  ExpectOutside(daemon, Bytes(0));
  daemon.process().Kill(SIGTERM);
  const ChildResult end = daemon.process().Join();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.err, HasSubstr("what is held outside leases of GPU 1 is not "
                                 "known, and counts as it did: "));
  EXPECT_EQ(Findings(), "");
}

// The contexts of the daemon and of the rank take 20 MiB each. Guards against a
// rank that reports its memory outside leases before it has a context.
TEST_P(BesideLeases, ARankReportsItsContextsMemoryBeforeItsLease) {
  SetDriver(true, ",context_kib=20480");
  RunningDaemon daemon(kToml);
  const auto rank = StartRank(daemon.socket(), 0);
  ASSERT_TRUE(rank->WaitForOutput(
      fmt::format("leases may have {}\n", MiB(24).size()), absl::Seconds(30)));
  ASSERT_TRUE(rank->WaitForOutput("same", absl::Seconds(30)));
  const auto status = [&](const std::vector<std::string>& how) {
    std::vector<std::string> words = {BinaryPath("sluicectl"), "--socket",
                                      daemon.socket(), "status"};
    words.insert(words.end(), how.begin(), how.end());
    return Child::Spawn(words)->Join().out;
  };
  EXPECT_THAT(status({"--json"}),
              HasSubstr(fmt::format("\"outside_bytes\":{}", MiB(20).size())));
  EXPECT_THAT(WholeLines(status({})),
              AllOf(HasSubstr("gpu 0: 8 MiB are held outside leases, by "
                              "contexts and buffers of libraries"),
                    HasSubstr("gpu 0: 20 MiB are outside the lease of rank 0 "
                              "of copies")));
  LetRanksEnd();
  rank->ExpectSuccess();
  ExpectOutside(daemon, Bytes(0));
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<bool, int>>& info) {
  return fmt::format("{}{}us", std::get<0>(info.param) ? "HostNuma" : "Memfd",
                     std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(, BesideLeases, ::testing::Values(std::tuple(true, 0)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(, OfCuda,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(0, 3000)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(, TakenOver,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(0, 3000)),
                         NameOf);

}  // namespace
}  // namespace sluice::testing
