// Tests daemons of this version and of the next that take over from each other
// with ranks attached.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "daemon/state/state_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kNewest = wire::Protocols().newest;
const std::string kNextState = fmt::format("the saved state is of version {}",
                                           daemon::StateVersions().written + 1);

class Versions : public ::testing::Test {
 protected:
  RawClient Connected() { return testing::Connected(daemon_); }
  RawClient Attached(const std::string& job = "job") {
    return testing::Attached(daemon_, job);
  }
  // Returns the protocol that a client which speaks `oldest` to `newest` gets.
  absl::StatusOr<uint32_t> Agreed(uint32_t oldest, uint32_t newest) {
    wire::Request request;
    request.mutable_hello()->set_observer(true);
    request.mutable_hello()->set_oldest_protocol(oldest);
    request.mutable_hello()->set_protocol(newest);
    RawClient client = Connected();
    const auto reply = client.Call(request);
    if (!reply.ok()) return reply.status();
    return reply->body.welcome().protocol();
  }
  void Restart(const std::string& program) {
    daemon_.Kill();
    daemon_.Use(program);
    daemon_.Start();
  }
  KeptDaemon daemon_;
};

TEST_F(Versions, TheNextDaemonAgreesOnTheClientsNewestProtocol) {
  daemon_.Use("sluiced-next");
  daemon_.Start();
  for (const uint32_t newest : {kNewest, kNewest + 1}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const uint32_t agreed, Agreed(1, newest));
    EXPECT_EQ(agreed, newest);
  }
  EXPECT_THAT(Agreed(kNewest + 2, kNewest + 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("upgrade the daemon")));
}

TEST_F(Versions, RanksStayAttachedToTheNextVersionAndBack) {
  daemon_.Start();
  RawClient rank = Attached();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                              rank.Lease(wire::Lease::GPU, MiB(4)));
  for (const char* program : {"sluiced-next", "sluiced", "sluiced-next"}) {
    SCOPED_TRACE(program);
    Restart(program);
    const auto event = rank.NextEvent(absl::Seconds(20));
    ASSERT_THAT(event, IsOk());
    EXPECT_TRUE(event->has_taken_over());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
    EXPECT_EQ(pool.leased_bytes(), MiB(4).size());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto more,
                                rank.Lease(wire::Lease::GPU, KiB(64)));
    EXPECT_THAT(rank.Free(more.body.granted().lease_id()), IsOk());
  }
  EXPECT_THAT(rank.Free(lease.body.granted().lease_id()), IsOk());
}

TEST_F(Versions, AnUnknownStateStaysForANewerDaemon) {
  daemon_.Use("sluiced-far");
  daemon_.Start();
  RawClient rank = Attached();
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, MiB(4)), IsOk());
  daemon_.Kill();
  daemon_.Use("sluiced");
  const int extents = daemon_.Count("e");
  for (int i = 0; i < 2; ++i) {
    daemon_.Start();
    EXPECT_THAT(
        Connected().Observe(),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(kNextState)));
    daemon_.Kill();
  }
  EXPECT_TRUE(daemon_.Has("state") && daemon_.Has("s1") && daemon_.Has("u1"));
  EXPECT_EQ(daemon_.Count("e"), extents);
  daemon_.Use("sluiced-far");
  daemon_.Start();
  const auto event = rank.NextEvent(absl::Seconds(20));
  ASSERT_THAT(event, IsOk()) << daemon_.Log();
  EXPECT_TRUE(event->has_taken_over());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), MiB(4).size());
}

// The session speaks a protocol that only the next daemon speaks.
TEST_F(Versions, ASessionOfANewerProtocolStaysForANewerDaemon) {
  daemon_.Use("sluiced-next");
  daemon_.Start();
  RawClient rank = Connected();
  wire::Request request;
  request.mutable_hello()->set_oldest_protocol(kNewest + 1);
  request.mutable_hello()->set_protocol(kNewest + 1);
  request.mutable_hello()->set_job("job");
  request.mutable_hello()->set_world_size(1);
  request.mutable_hello()->set_local_ranks(1);
  const auto nodes = GpuNodes(rank.fd(), 0);
  ASSERT_THAT(rank.Call(request, {nodes.at(0).get()}), IsOk());
  daemon_.Kill();
  daemon_.Use("sluiced");
  daemon_.Start();
  EXPECT_TRUE(daemon_.WaitForLog("session 1 speaks protocol 2"));
  daemon_.Kill();
  daemon_.Use("sluiced-next");
  daemon_.Start();
  EXPECT_THAT(rank.NextEvent(absl::Seconds(20)), IsOk());
}

TEST_F(Versions, CheckStateReportsWhetherABinaryWouldTakeOver) {
  daemon_.Start();
  const RawClient rank = Attached();
  for (const char* program : {"sluiced", "sluiced-next", "sluiced-far"}) {
    const ChildResult said = daemon_.CheckState(program, "sluiced.toml");
    EXPECT_EQ(said.exit_code, 0) << said.err;
    EXPECT_THAT(said.out, HasSubstr("good: 1 sessions, 0 leases"));
  }
  Restart("sluiced-far");
  const ChildResult refused = daemon_.CheckState("sluiced", "sluiced.toml");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err,
              HasSubstr("it would not be taken over: " + kNextState));
  EXPECT_EQ(daemon_.CheckState("sluiced-next", "sluiced.toml").exit_code, 0);
}

// An upgrade runs this check before it replaces a frozen daemon.
TEST_F(Versions, CheckStateReportsWhetherABinaryWouldReplaceAFrozenDaemon) {
  daemon_.Use("sluiced-far");
  daemon_.Start();
  const RawClient rank = Attached();
  Restart("sluiced");
  EXPECT_TRUE(daemon_.WaitForLog("sluiced is frozen"));
  const ChildResult far = daemon_.CheckState("sluiced-far", "sluiced.toml");
  EXPECT_EQ(far.exit_code, 0) << far.err;
  EXPECT_THAT(far.out, HasSubstr("good: 1 sessions, 0 leases of a frozen"));
  const ChildResult same = daemon_.CheckState("sluiced", "sluiced.toml");
  EXPECT_NE(same.exit_code, 0);
  EXPECT_THAT(same.err, HasSubstr(kNextState));
}

// Uses a daemon of an earlier build (tests/golden/README.md).
TEST_F(Versions, RanksStayAttachedFromAnOlderBinaryAndBack) {
  const char* const path = std::getenv("SLUICE_OLDER_DAEMON");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_OLDER_DAEMON names no binary";
  ASSERT_EQ(access(path, X_OK), 0) << path;
  // The path is relative to the folder of the other binaries.
  const std::string older =
      std::filesystem::relative(path, BinaryPath("")).string();
  daemon_.Use(older);
  daemon_.Start();
  RawClient rank = AttachedWithMemory(daemon_);
  for (const std::string& program :
       {std::string("sluiced"), older, std::string("sluiced")}) {
    SCOPED_TRACE(program);
    const ChildResult asked = daemon_.CheckState(program, "sluiced.toml");
    EXPECT_EQ(asked.exit_code, 0) << asked.err;
    Restart(program);
    ExpectKept(daemon_, rank);
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto more,
                                rank.Lease(wire::Lease::GPU, KiB(64)));
    EXPECT_THAT(rank.Free(more.body.granted().lease_id()), IsOk());
  }
}

TEST_F(Versions, CheckStateFailsIfTheNodeLacksALeasedGpu) {
  daemon_.Start();
  RawClient rank = Connected();
  ASSERT_THAT(rank.Hello("job", 0, 1, 1), IsOk());
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, KiB(64), 1), IsOk());
  std::ofstream(daemon_.File("other.toml"))
      << "[device]\ndriver = \"sim\"\n[sim]\ngpus = 1\n";
  const ChildResult said = daemon_.CheckState("sluiced", "other.toml");
  EXPECT_NE(said.exit_code, 0);
  EXPECT_THAT(said.err, HasSubstr("GPU 1"));
}

// A killed daemon's socket is there, but does not answer.
TEST_F(Versions, CheckStateSucceedsWithoutADaemon) {
  daemon_.Start();
  daemon_.Kill();
  ASSERT_TRUE(std::filesystem::exists(daemon_.File("admin.sock")));
  for (int i = 0; i < 2; ++i) {
    const ChildResult said = daemon_.CheckState("sluiced-far", "sluiced.toml");
    EXPECT_EQ(said.exit_code, 0) << said.err;
    EXPECT_THAT(said.out, HasSubstr("no daemon runs"));
    std::filesystem::remove(daemon_.File("admin.sock"));
  }
}

}  // namespace
}  // namespace sluice::testing
