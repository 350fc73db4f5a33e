// Tests the daemon as clients see it: real binary, real sockets, real deaths.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

TEST(DaemonSession, WelcomeDescribesTheSimulatedNode) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, client.Hello("demo"));
  const wire::Welcome& welcome = reply.body.welcome();
  EXPECT_NE(welcome.session_id(), 0u);
  EXPECT_EQ(welcome.driver(), "sim");
  EXPECT_EQ(welcome.sim_directory(), daemon.runtime_dir() + "/sim");
  ASSERT_EQ(welcome.gpus_size(), 2);
  EXPECT_EQ(welcome.gpus(1).pool().total_bytes(), MiB(36).size());
  EXPECT_EQ(welcome.gpus(1).link(), "pcie1");
  ASSERT_EQ(welcome.host_pools_size(), 1);
  EXPECT_EQ(welcome.host_pools(0).free_bytes(), MiB(384).size());
  EXPECT_EQ(welcome.granularity(), KiB(64).size());
  EXPECT_EQ(welcome.link_h2d_bytes_per_second(), 2e9);
  ASSERT_EQ(reply.fds.size(), 3u);  // two grant pages, clocks
}

// A client of a later version may or may not speak today's protocol as well.
TEST(DaemonSession, AProtocolThatBothSpeakIsAgreedOn) {
  RunningDaemon daemon;
  wire::Request request;
  wire::Hello* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocols.newest + 1);
  hello->set_oldest_protocol(wire::kProtocols.newest + 1);
  hello->set_observer(true);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient newer,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(newer.Call(request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("upgrade the daemon")));
  hello->set_oldest_protocol(wire::kProtocols.oldest);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, newer.Call(request));
  EXPECT_EQ(reply.body.welcome().protocol(), wire::kProtocols.newest);
}

TEST(DaemonSession, ALeaseComesAsOneDescriptorPerExtent) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(auto lease,
                              client.Lease(wire::Lease::GPU, MiB(9) + KiB(64)));
  const auto& sizes = lease.body.granted().extent_bytes();
  ASSERT_EQ(sizes.size(), 3);
  EXPECT_EQ(sizes[0], MiB(4).size());
  EXPECT_EQ(sizes[2], (MiB(1) + KiB(64)).size());
  EXPECT_EQ(lease.fds.size(), 3u);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), (MiB(9) + KiB(64)).size());
  lease.fds.clear();  // an open descriptor would keep the memory
  EXPECT_THAT(client.Free(lease.body.granted().lease_id()), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto after, GpuPool(daemon.socket(), 0));
  EXPECT_EQ(after.free_bytes(), after.total_bytes());
}

TEST(DaemonSession, ALargeLeaseComesInParts) {
  RunningDaemon daemon("[pools]\nextent_bytes = \"64KiB\"\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                              client.Lease(wire::Lease::GPU, MiB(36)));
  EXPECT_EQ(lease.fds.size(), 576u);
  EXPECT_EQ(lease.body.granted().extent_bytes_size(), 576);
  EXPECT_EQ(lease.body.granted().parts(), 3u);
}

TEST(DaemonSession, RefusalsStateAskedFreeAndTotalBytes) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("begins with Hello")));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(37)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("asked 37 MiB, free 36 MiB of 36 MiB")));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, Bytes(1000)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("granularity, 64 KiB")));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(1), 7),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no GPU 7")));
  EXPECT_THAT(client.Free(99), StatusIs(absl::StatusCode::kNotFound));
  // The refused requests changed nothing.
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(36)), IsOk());
}

TEST(DaemonSession, AClientRefusedAtAcceptReceivesTheReason) {
  RunningDaemon daemon("[quota]\nsessions = 1\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient first,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(first.Observe(), IsOk());
  for (int i = 0; i < 200; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient next,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(next.Observe(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("has 1 sessions, and the limit is 1: ")));
  }
}

TEST(DaemonSession, OnlyProcessesThatMayOpenAGpusNodeUseTheGpu) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto as_other = [](const RunningDaemon& daemon) {
    const auto other = Child::Fork([&] {
      ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
      SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                  RawClient::Connect(daemon.socket()));
      const absl::Status first = client.Hello("first", 0, 1, 0).status();
      fmt::print("{}\n", std::string(first.message()));
      if (!first.ok()) {
        ASSERT_THAT(client.Hello("other", 0, 1, 1), IsOk());
      }
      wire::Request lease;
      lease.mutable_lease()->set_ordinal(0);
      lease.mutable_lease()->set_bytes(MiB(1).size());
      const auto leased = client.Call(lease);
      fmt::print("{}\n", std::string(leased.status().message()));
      lease.mutable_lease()->set_ordinal(1);
      fmt::print("{}\n", std::string(client.Call(lease).status().message()));
    });
    const ChildResult result = other->Join();
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return result.out;
  };
  const auto close_first = [](const RunningDaemon& daemon) {
    ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
    ASSERT_EQ(chmod((daemon.runtime_dir() + "/sim/gpu0").c_str(), 0600), 0);
  };
  RunningDaemon daemon, open("[gpus]\naccess = \"any\"\n");
  close_first(daemon);
  close_first(open);
  // GPU 0 is refused to a Hello, and to a lease of a session on GPU 1.
  const std::string refused =
      "this process may not use GPU 0: its Hello showed no descriptor of " +
      daemon.runtime_dir() +
      "/sim/gpu0 that is open for reading and writing; permit it to open that, "
      "or set access = \"any\" in [gpus]\n";
  EXPECT_EQ(as_other(daemon), refused + refused + "\n");
  EXPECT_THAT(as_other(open), ::testing::StartsWith("\n\n"));
  // Root may open GPU 0's node.
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(client.Hello("own"), IsOk());
}

TEST(DaemonSession, ARepeatedRequestIsExecutedOnceAndAnsweredAgain) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  wire::Request request;
  request.mutable_lease()->set_kind(wire::Lease::GPU);
  request.mutable_lease()->set_bytes(MiB(20).size());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto first, client.Call(request, {}, 77));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto again, client.Call(request, {}, 77));
  EXPECT_EQ(first.body.granted().lease_id(), again.body.granted().lease_id());
  EXPECT_EQ(first.fds.size(), again.fds.size());
  struct stat one, two;
  ASSERT_EQ(fstat(first.fds[0].get(), &one), 0);
  ASSERT_EQ(fstat(again.fds[0].get(), &two), 0);
  EXPECT_EQ(one.st_ino, two.st_ino);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), MiB(20).size());
}

// Forks a rank that attaches, leases, prints that, and waits to be killed.
std::unique_ptr<Child> ForkHolder(const std::string& socket, int rank,
                                  int ranks) {
  return Child::Fork([=] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
    ASSERT_THAT(client.Hello("demo", rank, ranks, rank), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                client.Lease(wire::Lease::GPU, MiB(36), rank));
    ASSERT_EQ(write(STDOUT_FILENO, "holding\n", 8), 8);
    pause();
  });
}

TEST(DaemonDeath, AKilledClientsMemoryBecomesFree) {
  RunningDaemon daemon;
  const auto holder = ForkHolder(daemon.socket(), 0, 1);
  ASSERT_TRUE(holder->WaitForOutput("holding", absl::Seconds(10)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto held, GpuPool(daemon.socket(), 0));
  ASSERT_EQ(held.leased_bytes(), MiB(36).size());
  holder->Kill(SIGKILL);
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
  // All of the memory can be leased again.
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient next,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(next.Hello("demo"), IsOk());
  EXPECT_THAT(next.Lease(wire::Lease::GPU, MiB(36)), IsOk());
}

TEST(DaemonDeath, PeersOfTheJobAreToldHowARankDied) {
  RunningDaemon daemon;
  const auto holder = ForkHolder(daemon.socket(), 1, 2);
  ASSERT_TRUE(holder->WaitForOutput("holding", absl::Seconds(10)));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient peer,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(peer.Hello("demo", 0, 2), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient stranger,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(stranger.Hello("other", 0, 1), IsOk());
  holder->Kill(SIGKILL);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto event,
                              peer.NextEvent(absl::Seconds(20)));
  ASSERT_TRUE(event.has_peer_died());
  EXPECT_EQ(event.peer_died().rank(), 1u);
  EXPECT_EQ(event.peer_died().job(), "demo");
  EXPECT_THAT(event.peer_died().reason(), HasSubstr("killed by signal 9"));
  EXPECT_THAT(stranger.NextEvent(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(DaemonDeath, SessionsThatEndTogetherAreClosedBeforePeersAreTold) {
  RunningDaemon daemon;
  const auto first = ForkHolder(daemon.socket(), 0, 3);
  const auto second = ForkHolder(daemon.socket(), 1, 3);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient peer,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(peer.Hello("demo", 2, 3), IsOk());
  for (const auto* holder : {&first, &second}) {
    ASSERT_TRUE((*holder)->WaitForOutput("holding", absl::Seconds(10)));
  }
  kill(daemon.pid(), SIGSTOP);
  for (const auto* holder : {&first, &second}) {
    (*holder)->Kill(SIGKILL);
    (*holder)->Join();
  }
  kill(daemon.pid(), SIGCONT);
  for (int i = 0; i < 2; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto event,
                                peer.NextEvent(absl::Seconds(10)));
    EXPECT_TRUE(event.has_peer_died());
  }
  const std::string events = Child::Spawn({BinaryPath("sluicectl"), "--socket",
                                           daemon.socket(), "events"})
                                 ->Join()
                                 .out;
  EXPECT_LT(events.rfind("closed its session"),
            events.find("killed by signal 9"))
      << events;
}

TEST(DaemonDeath, ARankThatFreesAndExitsIsNotADeath) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient peer,
                              RawClient::Connect(daemon.socket()));
  const auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo", 1, 2, 1), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                client.Lease(wire::Lease::GPU, MiB(4), 1));
    ASSERT_THAT(client.Free(lease.body.granted().lease_id()), IsOk());
  });
  ASSERT_THAT(peer.Hello("demo", 0, 2), IsOk());
  rank->ExpectSuccess();
  EXPECT_THAT(peer.NextEvent(absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(DaemonGrants, TheLimitsPageIsReadOnlyAndTheUsePageCannotShrink) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, client.Hello("demo"));
  ASSERT_EQ(reply.fds.size(), 3u);
  EXPECT_EQ(mmap(nullptr, sizeof(GrantLimits), PROT_READ | PROT_WRITE,
                 MAP_SHARED, reply.fds[0].get(), 0),
            MAP_FAILED);
  auto* limits =
      static_cast<GrantLimits*>(mmap(nullptr, sizeof(GrantLimits), PROT_READ,
                                     MAP_SHARED, reply.fds[0].get(), 0));
  ASSERT_NE(limits, MAP_FAILED);
  auto* use = static_cast<GrantUse*>(mmap(nullptr, sizeof(GrantUse),
                                          PROT_READ | PROT_WRITE, MAP_SHARED,
                                          reply.fds[1].get(), 0));
  ASSERT_NE(use, MAP_FAILED);
  EXPECT_NE(ftruncate(reply.fds[1].get(), 0), 0);
  const uint32_t slot = reply.body.welcome().grant_slot();
  const uint64_t beat = limits->heartbeat_ns.load();
  // A rank that holds memory gets a first limit.
  ASSERT_THAT(client.Lease(wire::Lease::GPU, KiB(64)), IsOk());
  AwaitRefills(reply.fds[0].get());
  const uint64_t limit = limits->slots[slot].limit_bytes[kH2d].load();
  EXPECT_GT(limit, 0u);
  const absl::Time begin = absl::Now();
  use->slot.used_bytes[kH2d] = limit;
  // The limit grows by 2 GB/s while the daemon's thread has the CPU. Here it
  // must grow by 300 MB within 10 s, and at less than 10 GB/s.
  uint64_t later = limit;
  for (int i = 0; i < 1000 && later - limit < 300'000'000u; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    later = limits->slots[slot].limit_bytes[kH2d].load();
  }
  EXPECT_GT(limits->heartbeat_ns.load(), beat);
  EXPECT_GE(later - limit, 300'000'000u);
  EXPECT_LT(static_cast<double>(later - limit),
            10e9 * absl::ToDoubleSeconds(absl::Now() - begin));
  munmap(limits, sizeof(GrantLimits));
  munmap(use, sizeof(GrantUse));
}

TEST(DaemonLife, ASecondDaemonIsRefusedAndSigtermLeavesNothing) {
  auto daemon = std::make_unique<RunningDaemon>();
  const auto second = Child::Spawn(
      {BinaryPath("sluiced"), "--runtime-dir", daemon->runtime_dir()});
  const ChildResult refused = second->Join();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("error: another sluiced runs in"));
  daemon->process().Kill(SIGTERM);
  EXPECT_EQ(daemon->process().Join().exit_code, 0);
  for (const auto& left :
       std::filesystem::directory_iterator(daemon->runtime_dir())) {
    EXPECT_EQ(left.path().filename(), "sluiced.toml");
  }
}

TEST(DaemonLife, SocketsOfADeadDaemonAreReplaced) {
  RunningDaemon daemon;
  daemon.process().Kill(SIGKILL);
  daemon.process().Join();
  ASSERT_TRUE(std::filesystem::exists(daemon.socket()));
  const auto next = Child::Spawn({BinaryPath("sluiced"), "--runtime-dir",
                                  daemon.runtime_dir(), "--config",
                                  daemon.runtime_dir() + "/sluiced.toml"});
  ASSERT_TRUE(next->WaitForOutput("sluiced: ready", absl::Seconds(10)));
  EXPECT_THAT(GpuPool(daemon.socket(), 0), IsOk());
}

}  // namespace
}  // namespace sluice::testing
