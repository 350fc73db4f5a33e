// Tests jobs that an administrator ends.
#include <unistd.h>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/admin_stub.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/pool_soon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

// Evicts all sessions of job "demo".
grpc::Status Evict(const RunningDaemon& daemon, bool kill,
                   admin::EvictReply& reply,
                   const std::string& reason = "maintenance") {
  grpc::ClientContext context;
  admin::EvictRequest request;
  request.set_job("demo");
  request.set_reason(reason);
  request.set_kill(kill);
  return AdminStub(daemon)->Evict(&context, request, &reply);
}

TEST(DaemonAdmin, EvictedRankIsToldWhyAndItsMemoryComesBackWhenItEnds) {
  RunningDaemon daemon;
  int leave[2];
  ASSERT_EQ(pipe(leave), 0);
  const auto rank = Child::Fork([&] {
    close(leave[1]);
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo"), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                client.Lease(wire::Lease::GPU, MiB(8)));
    ASSERT_EQ(write(STDOUT_FILENO, "holding\n", 8), 8);
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto event,
                                client.NextEvent(absl::Seconds(10)));
    ASSERT_TRUE(event.has_evicted());
    EXPECT_EQ(event.evicted().reason(), "maintenance");
    EXPECT_THAT(client.NextEvent(absl::Seconds(10)),
                StatusIs(absl::StatusCode::kUnavailable));
    ASSERT_EQ(write(STDOUT_FILENO, "told\n", 5), 5);
    char byte;  // waits until the test has checked the pool
    ASSERT_EQ(read(leave[0], &byte, 1), 0);
  });
  close(leave[0]);
  ASSERT_TRUE(rank->WaitForOutput("holding", absl::Seconds(10)));
  admin::EvictReply reply;
  ASSERT_TRUE(Evict(daemon, /*kill=*/false, reply).ok());
  EXPECT_EQ(reply.sessions(), 1u);
  ASSERT_TRUE(rank->WaitForOutput("told", absl::Seconds(10)));
  // The rank still has the memory, so no other rank may lease it.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), 0u);
  EXPECT_EQ(pool.quarantined_bytes(), MiB(8).size());
  close(leave[1]);
  rank->ExpectSuccess();
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());

  EXPECT_EQ(Evict(daemon, /*kill=*/false, reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// Guards against a packet that is too large for the socket: the rank would see
// its session end without a reason.
TEST(DaemonAdmin, AnEvictedRankGetsTheBeginningOfATooLongReason) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  std::string reason = "for";
  while (reason.size() < 100 << 10) reason += "\né";
  admin::EvictReply reply;
  ASSERT_TRUE(Evict(daemon, /*kill=*/false, reply, reason).ok());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto event,
                              client.NextEvent(absl::Seconds(10)));
  ASSERT_TRUE(event.has_evicted());
  // 256 bytes are kept, with '?' in place of each control character.
  EXPECT_THAT(event.evicted().reason(), ::testing::StartsWith("for?é?é"));
  EXPECT_EQ(event.evicted().reason().size(), 256u);
}

TEST(DaemonAdmin, EvictWithKillEndsTheProcess) {
  RunningDaemon daemon;
  const auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo"), IsOk());
    ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
    ASSERT_EQ(write(STDOUT_FILENO, "holding\n", 8), 8);
    pause();
  });
  ASSERT_TRUE(rank->WaitForOutput("holding", absl::Seconds(10)));
  admin::EvictReply reply;
  ASSERT_TRUE(Evict(daemon, /*kill=*/true, reply).ok());
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
  EXPECT_EQ(reply.processes(), 1u);
  EXPECT_EQ(rank->Join().signal, 9);
}

// Guards against a daemon that kills a process and yet answers that there was
// nothing to evict.
TEST(DaemonAdmin, EvictWithKillReportsKilledProcessesOfEndedSessions) {
  RunningDaemon daemon;
  const auto rank = Child::Fork([&] {
    {
      SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                  RawClient::Connect(daemon.socket()));
      ASSERT_THAT(client.Hello("demo"), IsOk());
      ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
    }
    ASSERT_EQ(write(STDOUT_FILENO, "closed\n", 7), 7);
    pause();
  });
  ASSERT_TRUE(rank->WaitForOutput("closed", absl::Seconds(10)));
  // Until the daemon has read the close, there is a session to evict.
  ExpectSoon(daemon.socket(), &wire::Pool::leased_bytes, Bytes(0));
  admin::EvictReply reply;
  EXPECT_EQ(Evict(daemon, /*kill=*/false, reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
  const grpc::Status said = Evict(daemon, /*kill=*/true, reply);
  EXPECT_TRUE(said.ok()) << said.error_message();
  EXPECT_EQ(reply.sessions(), 0u);
  EXPECT_EQ(reply.processes(), 1u);
  EXPECT_EQ(rank->Join().signal, 9);
}

}  // namespace
}  // namespace sluice::testing
