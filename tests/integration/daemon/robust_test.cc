// Tests clients that break the protocol, do nothing, or never read: all other
// clients are still served.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// A sanitizer's shadow memory counts as resident, so VmRSS means nothing then.
#ifdef SLUICE_SANITIZED
constexpr bool kMeasureMemory = false;
#else
constexpr bool kMeasureMemory = true;
#endif

// Expects an answer within 5 s. Clients are promised 100 ms, but the machine of
// a test is shared.
void ExpectServed(const std::string& socket) {
  const absl::Time start = absl::Now();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Observe(), IsOk());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

// Expects that the daemon ends the client's session, possibly after a reply.
void ExpectEnded(RawClient& client) {
  for (int i = 0; i < 100; ++i) {
    const auto event = client.NextEvent(absl::Seconds(5));
    if (absl::IsInternal(event.status())) continue;  // a reply
    EXPECT_THAT(event, StatusIs(absl::StatusCode::kUnavailable));
    return;
  }
  ADD_FAILURE() << "the session was not ended";
}

TEST(DaemonRobust, GarbageEndsTheSessionThatSentIt) {
  RunningDaemon daemon;
  std::mt19937 random(1);
  for (size_t size : {1u, 7u, 100u, 4096u, 65536u}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    bytes[0] = '\xff';  // no packet begins with this byte
    ASSERT_EQ(send(client.fd(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(size));
    ExpectEnded(client);
  }
  ExpectServed(daemon.socket());
}

TEST(DaemonRobust, PacketBeyondTheLimitEndsTheSession) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  const std::string bytes(100'000, 'x');
  ASSERT_GT(send(client.fd(), bytes.data(), bytes.size(), 0), 0);
  ExpectEnded(client);
  ExpectServed(daemon.socket());
}

TEST(DaemonRobust, RepliesAndEventsFromAClientEndItsSession) {
  RunningDaemon daemon;
  for (bool reply : {true, false}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    wire::Packet packet;
    packet.set_id(1);
    if (reply) {
      packet.mutable_reply()->mutable_freed();
    } else {
      packet.mutable_event()->mutable_evicted();
    }
    ASSERT_THAT(wire::Send(client.fd(), packet), IsOk());
    ExpectEnded(client);
  }
}

TEST(DaemonRobust, BadFieldsAreRefusedByNameAndTheSessionGoesOn) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(client.Hello("two words"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job")));
  EXPECT_THAT(client.Hello("demo", 0, 1, 9),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no GPU 9: this node has 2")));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  wire::Request lease;
  lease.mutable_lease()->set_bytes(uint64_t{1} << 63);
  EXPECT_THAT(client.Call(lease), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("lease bytes")));
  wire::Request empty;
  EXPECT_THAT(client.Call(empty), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(1)), IsOk());
}

TEST(DaemonRobust, SurplusDescriptorsAreClosedNotKept) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]), writer(ends[1]);
  wire::Request request;
  request.mutable_free()->set_lease_id(1);
  // The daemon must close both descriptors even if it refuses the request.
  client.Call(request, {writer.get(), writer.get()}).status().IgnoreError();
  writer.Reset();
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
}

TEST(DaemonRobust, AThousandHalfOpenConnectionsDelayNoOtherClient) {
  // This process needs a descriptor per connection, too.
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GT(limit.rlim_cur, 1200u);
  RunningDaemon daemon;
  std::vector<UniqueFd> half_open;
  for (int i = 0; i < 1000; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd fd, wire::Connect(daemon.socket()));
    half_open.push_back(std::move(fd));
    if (i % 100 == 99) ExpectServed(daemon.socket());
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(36)), IsOk());
}

TEST(DaemonRobust, AClientThatNeverReadsIsEndedAndDelaysNoOther) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient deaf,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(deaf.Hello("deaf"), IsOk());
  ASSERT_THAT(deaf.Lease(wire::Lease::GPU, MiB(4)), IsOk());
  // Asks for large answers and reads none, until the daemon ends the session.
  const absl::Time start = absl::Now();
  uint64_t id = 1000;
  bool ended = false;
  while (!ended && absl::Now() - start < absl::Seconds(20)) {
    wire::Packet packet;
    packet.set_id(id++);
    packet.mutable_request()->mutable_query();
    const absl::Status sent = wire::Send(deaf.fd(), packet);
    ended = absl::IsUnavailable(sent);
    if (sent.ok()) continue;
    ExpectServed(daemon.socket());
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_TRUE(ended)
      << "the session is still attached after 20 s without a read";
}

TEST(DaemonRobust, EightAttachedRanksCostLittleMemory) {
  if (!kMeasureMemory) GTEST_SKIP() << "a sanitizer changes the resident size";
  RunningDaemon daemon("[sim]\ngpus = 8\n[http]\nlisten = \"127.0.0.1:0\"\n");
  std::vector<RawClient> ranks;
  for (int r = 0; r < 8; ++r) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo", r, 8, r), IsOk());
    ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(36), r), IsOk());
    ASSERT_THAT(client.Lease(wire::Lease::HOST, MiB(32)), IsOk());
    ranks.push_back(std::move(client));
  }
  const Bytes resident = daemon.Memory("VmRSS");
  RecordProperty("resident_bytes", static_cast<int>(resident.count()));
  EXPECT_GT(resident, MiB(1));
  EXPECT_LE(resident, MiB(50));
}

TEST(DaemonRobust, RanksThatDieLeaveNoDescriptorAndNoMemory) {
  RunningDaemon daemon;
  const auto descriptors = [&] {
    int count = 0;
    const std::string path =
        "/proc/" + std::to_string(daemon.process().pid()) + "/fd";
    for ([[maybe_unused]] const auto& each :
         std::filesystem::directory_iterator(path)) {
      ++count;
    }
    return count;
  };
  int before = 0;
  Bytes resident;
  for (int i = 0; i < 60; ++i) {
    const auto rank = Child::Fork([&] {
      SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                  RawClient::Connect(daemon.socket()));
      ASSERT_THAT(client.Hello("demo"), IsOk());
      ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(36)), IsOk());
      raise(SIGKILL);
    });
    EXPECT_EQ(rank->Join().signal, SIGKILL);
    ASSERT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
    if (i == 20) {
      before = descriptors();
      resident = daemon.Memory("VmRSS");
    }
  }
  // The daemon closes sockets in a thread other than its loop's.
  const absl::Time late = absl::Now() + absl::Seconds(10);
  while (descriptors() > before + 2 && absl::Now() < late) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LE(descriptors(), before + 2);  // 2 for this test's observers
  if (kMeasureMemory) {
    EXPECT_LE(daemon.Memory("VmRSS"), resident + MiB(2));
  }
}

TEST(DaemonRobust, AStoppedClientDelaysNoOtherClient) {
  RunningDaemon daemon;
  const auto stopped = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo"), IsOk());
    ASSERT_EQ(write(STDOUT_FILENO, "here\n", 5), 5);
    raise(SIGSTOP);
  });
  ASSERT_TRUE(stopped->WaitForOutput("here", absl::Seconds(10)));
  for (int i = 0; i < 20; ++i) ExpectServed(daemon.socket());
}

}  // namespace
}  // namespace sluice::testing
