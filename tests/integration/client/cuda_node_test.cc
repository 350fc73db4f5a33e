// A node on cuda as processes: the real sluiced and ranks of libsluice, each on
// the strict fake driver (tests/fake_cuda), which exits with 86 when a rule was
// broken, copies raced or anything was left. It proves nothing about a GPU.
#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

// The fake has no device nodes by which the daemon could tell who may have a
// GPU: here anybody may.
constexpr char kToml[] =
    "[device]\ndriver = \"cuda\"\n"
    "[gpus]\naccess = \"any\"\n"
    "[pools]\ngpu_bytes = \"32MiB\"\nhost_bytes = \"64MiB\"\n"
    "extent_bytes = \"4MiB\"\n";

// Whether the driver makes host memory, and how late streams are.
class OfCuda : public ::testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  // One node for all processes: its folder is the test's. What any of them
  // finds is a line of the file `findings` there.
  OfCuda() {
    const auto [host_numa, jitter_us] = GetParam();
    setenv("LD_LIBRARY_PATH", SLUICE_FAKE_CUDA_DIR, 1);
    setenv("SLUICE_FAKE_CUDA",
           fmt::format("gpus=2,host_numa={},jitter_us={},node={}",
                       host_numa ? 1 : 0, jitter_us, node_.path())
               .c_str(),
           1);
  }
  ~OfCuda() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("SLUICE_FAKE_CUDA");
  }

  std::unique_ptr<Child> StartRank(const RunningDaemon& daemon, int rank) {
    return Child::Spawn({BinaryPath("cuda_rank"), daemon.socket(),
                         std::to_string(rank), std::to_string(rank), until()});
  }
  std::string until() const { return signs_.File("end"); }
  void LetRanksEnd() const { std::ofstream(until()) << "\n"; }
  std::string Findings() const {
    std::ifstream file(node_.File("findings"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Files that a process would hold: of GPU `gpu`, and of host memory there.
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

void ExpectAllIsFree(const RunningDaemon& daemon) {
  for (const int gpu : {0, 1}) {
    EXPECT_THAT(WaitUntilFree(daemon.socket(), gpu, absl::Seconds(20)), IsOk());
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool host,
                              HostPool(daemon.socket(), 0));
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
  const auto first = StartRank(daemon, 0);
  const auto second = StartRank(daemon, 1);
  EXPECT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  EXPECT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  // The test sees what it says it sees: memory of both GPUs is on this fake.
  EXPECT_TRUE(HasMemoryOfGpu(0));
  EXPECT_TRUE(HasMemoryOfGpu(1));
  LetRanksEnd();
  first->ExpectSuccess();
  second->ExpectSuccess();
  ExpectAllIsFree(daemon);
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

TEST_P(OfCuda, ARankThatIsKilledGivesBackAllAndTheOtherGoesOn) {
  RunningDaemon daemon(kToml);
  const auto first = StartRank(daemon, 0);
  const auto second = StartRank(daemon, 1);
  ASSERT_TRUE(first->WaitForOutput("same", absl::Seconds(30)));
  ASSERT_TRUE(second->WaitForOutput("same", absl::Seconds(30)));
  first->Kill(SIGKILL);
  EXPECT_EQ(first->Join().signal, SIGKILL);
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(20)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool other,
                              GpuPool(daemon.socket(), 1));
  EXPECT_GT(other.leased_bytes(), 0u);
  LetRanksEnd();  // it copies once more before it ends
  second->ExpectSuccess();
  ExpectAllIsFree(daemon);
  ExpectEndsWell(daemon);
  EXPECT_EQ(Findings(), "");
}

INSTANTIATE_TEST_SUITE_P(
    , OfCuda, ::testing::Combine(::testing::Bool(), ::testing::Values(0, 3000)),
    [](const auto& info) {
      return fmt::format("{}{}us",
                         std::get<0>(info.param) ? "HostNuma" : "Memfd",
                         std::get<1>(info.param));
    });

}  // namespace
}  // namespace sluice::testing
