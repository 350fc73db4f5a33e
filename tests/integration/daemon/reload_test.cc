// Tests SIGHUP: the daemon ends and the next daemon reads the configuration
// again. If the next daemon could not take over, nothing changes.
#include <signal.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class ReloadTest : public ::testing::Test {
 protected:
  RawClient Attached() { return AttachedWithMemory(daemon_); }
  void Append(const std::string& toml) {
    std::ofstream(daemon_.File("sluiced.toml"), std::ios::app) << toml;
  }
  void HangUp() { ASSERT_EQ(kill(daemon_.pid(), SIGHUP), 0); }
  // Starts the next daemon after this one's end, as a keeper does.
  void StartNext() {
    ASSERT_EQ(daemon_.Join(), 0) << daemon_.Log();
    daemon_.Start();
  }
  void ExpectServed(RawClient& rank) { ExpectKept(daemon_, rank); }

  KeptDaemon daemon_;
};

TEST_F(ReloadTest, ANewLimitBindsAndTheRankStaysAttached) {
  daemon_.Start();
  RawClient rank = Attached();
  Append("[budgets]\nprincipal_gpu_bytes = \"5MiB\"\n");
  HangUp();
  StartNext();
  ExpectServed(rank);
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ReloadTest, TheSocketStaysWithoutAnyRank) {
  daemon_.Start();
  Append("[log]\nlevel = \"debug\"\n");
  HangUp();
  ASSERT_EQ(daemon_.Join(), 0);
  auto client = RawClient::Connect(daemon_.socket());  // waits for an accept
  ASSERT_THAT(client, IsOk());
  daemon_.Start();
  EXPECT_THAT(client->Observe(), IsOk());
}

TEST_F(ReloadTest, ABadFileChangesNothing) {
  daemon_.Start();
  RawClient rank = Attached();
  Append("[nonsense]\n");
  HangUp();
  EXPECT_TRUE(daemon_.WaitForLog("the configuration stays as it was: "));
  EXPECT_THAT(daemon_.Log(), HasSubstr("'nonsense'"));
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, KiB(64)), IsOk());
}

TEST_F(ReloadTest, AFileWithoutALeasedGpuChangesNothing) {
  daemon_.Start();
  auto rank = RawClient::Connect(daemon_.socket());
  ASSERT_THAT(rank, IsOk());
  ASSERT_THAT(rank->Hello("job", 0, 1, 1), IsOk());
  ASSERT_THAT(rank->Lease(wire::Lease::GPU, MiB(4), 1), IsOk());
  Append("[sim]\ngpus = 1\n");
  HangUp();
  EXPECT_TRUE(daemon_.WaitForLog("it would not be taken over: "));
  EXPECT_THAT(rank->Lease(wire::Lease::GPU, KiB(64), 1), IsOk());
}

// Guards against a next daemon with negative free memory.
TEST_F(ReloadTest, APoolSmallerThanItsLeasesChangesNothing) {
  daemon_.Start();
  RawClient rank = Attached();
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, MiB(12)), IsOk());
  Append("[pools]\ngpu_bytes = \"8MiB\"\n");
  HangUp();
  EXPECT_TRUE(daemon_.WaitForLog("it would not be taken over: "));
  EXPECT_THAT(daemon_.Log(), HasSubstr("as large again ([pools] gpu_bytes)"));
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, MiB(8)), IsOk());
}

}  // namespace
}  // namespace sluice::testing
