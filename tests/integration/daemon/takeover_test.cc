// Tests what happens to ranks if their daemon dies at an unlucky moment, or if
// the next daemon does not start at once.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/integration/daemon/lingering_socket.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// Expects that the new daemon has announced itself, and answers.
void ExpectServed(RawClient& client) {
  const auto event = client.NextEvent(absl::Seconds(20));
  ASSERT_THAT(event, IsOk());
  EXPECT_TRUE(event->has_taken_over());
  const auto lease = client.Lease(wire::Lease::GPU, KiB(64));
  ASSERT_THAT(lease, IsOk());
  EXPECT_THAT(client.Free(lease->body.granted().lease_id()), IsOk());
}

// Returns the Hello of a job's only rank.
wire::Request LoneHello() {
  wire::Request request;
  auto* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocols.newest);
  hello->set_job("job");
  hello->set_world_size(1);
  hello->set_local_ranks(1);
  return request;
}

class TakeOver : public ::testing::Test {
 protected:
  // Attaches a rank; the first rank's session has the number 1.
  RawClient Attached(const std::string& job = "job") {
    return testing::Attached(daemon_, job);
  }
  KeptDaemon daemon_;
};

// Guards against a generation that depends only on the clock.
TEST_F(TakeOver, TheGenerationRisesAlthoughTheClockWasSetBack) {
  daemon_.Start();
  RawClient rank = Attached();
  // Simulates a daemon that ran while the clock was a year ahead.
  const UniqueFd page = daemon_.Copy("limits");
  const auto ahead = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())) +
                     uint64_t{31'000'000} * 1'000'000'000;
  ASSERT_EQ(pwrite(page.get(), &ahead, sizeof(ahead),
                   offsetof(GrantLimits, generation)),
            static_cast<ssize_t>(sizeof(ahead)));
  daemon_.KillAndStart();
  ExpectServed(rank);
  EXPECT_EQ(rank.generation(), ahead + 1);
}

TEST_F(TakeOver, ARankStaysAttached) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.KillAndStart();
  ExpectServed(rank);
  EXPECT_THAT(HttpGet(daemon_.File("http.sock"), "/metrics"),
              HasSubstr("\nsluice_kept 1\n"));
}

// Guards against a new listening socket that is not kept because the old socket
// was kept under the same name.
TEST_F(TakeOver, AReplacedListenerIsKeptToo) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  std::filesystem::remove(daemon_.socket());
  daemon_.Start();
  daemon_.Kill();
  // No daemon accepts this connection yet.
  RawClient next = Connected(daemon_);
  daemon_.Start();
  EXPECT_THAT(next.Observe(), IsOk());
  ExpectServed(rank);
}

TEST_F(TakeOver, AFailedStartLeavesAllToTheNextDaemon) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  const std::string file = daemon_.File("sluiced.toml");
  std::filesystem::copy_file(file, daemon_.File("good.toml"));
  std::ofstream(file, std::ios::app) << "[worker]\nuser = \"nobody-here\"\n";
  EXPECT_NE(daemon_.StartThatFails(), 0);
  std::filesystem::rename(daemon_.File("good.toml"), file);
  RawClient next = Connected(daemon_);
  daemon_.Start();
  ExpectServed(rank);
  EXPECT_THAT(next.Observe(), IsOk());
}

TEST_F(TakeOver, AnObstructedAdminSocketEndsNoSession) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  const std::string in_the_way = daemon_.File("admin.sock");
  std::filesystem::remove(in_the_way);
  std::filesystem::create_directories(in_the_way + "/x");
  daemon_.Start();
  ExpectServed(rank);
  std::filesystem::remove_all(in_the_way);
  EXPECT_TRUE(daemon_.WaitForLog("administrators are served")) << daemon_.Log();
  EXPECT_TRUE(std::filesystem::is_socket(in_the_way));
}

// Guards against closing a session's socket in the daemon's loop or in the
// keeper's: the last holder of a socket also closes the unread descriptors in
// it, and such a close may linger.
TEST_F(TakeOver, ALingeringDescriptorBlocksNeitherTheNextDaemonNorTheKeeper) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  UniqueFd reader;
  {
    const UniqueFd lingering = LingeringSocket(reader);
    ASSERT_TRUE(lingering);
    wire::Packet packet;
    packet.set_id(99);
    packet.mutable_request()->mutable_free()->set_lease_id(1);
    const int fd = lingering.get();
    ASSERT_THAT(wire::Send(rank.fd(), packet, {&fd, 1}), IsOk());
  }
  daemon_.Lose("state");
  const absl::Time before = absl::Now();
  daemon_.Start();
  EXPECT_TRUE(daemon_.WaitUntilGone("s1"));
  EXPECT_THAT(Connected(daemon_).Observe(), IsOk());
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
}

// Guards against exit status 2, after which the keeper would keep nothing.
TEST(TakeOverOfPort, ATakenPortIsOnlyAWarning) {
  const UniqueFd port(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(port.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(
      getsockname(port.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  KeptDaemon daemon(fmt::format("[http]\nlisten = \"127.0.0.1:{}\"\n",
                                ntohs(address.sin_port)));
  ASSERT_EQ(listen(port.get(), 1), 0);
  daemon.Put("orphan", *port.Duplicate());
  daemon.Start();
  EXPECT_TRUE(daemon.WaitForLog("no metrics on TCP"));
  EXPECT_TRUE(daemon.WaitUntilGone("orphan"));
}

// The daemon died just before it stored the rank's process. Guards against a
// next daemon that takes over no session at all.
TEST_F(TakeOver, AClosedRankWithoutItsProcessIsForgotten) {
  daemon_.Start();
  RawClient rank = Attached();
  { const RawClient other = Attached("other"); }
  ASSERT_TRUE(daemon_.WaitUntilGone("s2"));
  daemon_.Kill();
  ASSERT_TRUE(daemon_.Has("p2"));
  daemon_.Lose("p2");
  daemon_.Start();
  ExpectServed(rank);
}

// The daemon died just after it closed the session. Guards against a socket
// that stays in the store for ever.
TEST_F(TakeOver, TheSocketOfAClosedRankIsNotKept) {
  daemon_.Start();
  RawClient rank = Attached();
  UniqueFd socket = daemon_.Copy("s1");
  rank.socket().Reset();
  ASSERT_TRUE(daemon_.WaitUntilGone("s1"));
  daemon_.Kill();
  daemon_.Put("s1", std::move(socket));
  daemon_.Start();
  EXPECT_TRUE(daemon_.WaitUntilGone("s1"));
  EXPECT_TRUE(daemon_.Has("p1"));
}

UniqueFd MemoryOf(off_t size) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  SLUICE_CHECK(ftruncate(fd.get(), size) == 0);
  return fd;
}

// Guards against a rank that may lease only on its own GPU after a take-over.
TEST_F(TakeOver, ARankMayStillUseTheGpusThatItShowed) {
  daemon_.Start();
  RawClient rank = Connected(daemon_);
  const auto own = GpuNodes(rank.fd(), 0), other = GpuNodes(rank.fd(), 1);
  ASSERT_THAT(rank.Call(LoneHello(), {own.at(0).get(), other.at(0).get()}),
              IsOk());
  daemon_.KillAndStart();
  ExpectServed(rank);
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, KiB(64), 1), IsOk());
}

// Sends a Hello under this request id.
absl::StatusOr<RawClient::Reply> HelloAs(RawClient& rank, uint64_t id) {
  const auto nodes = GpuNodes(rank.fd(), 0);
  std::vector<int> shown;
  for (const UniqueFd& node : nodes) shown.push_back(node.get());
  return rank.Call(LoneHello(), shown, id);
}

// The daemon died before the rank got its Welcome. Guards against a rank that
// is refused because of its own session.
TEST(TakeOverOfTheLastRank, ARepeatedHelloIsAnsweredAgain) {
  KeptDaemon daemon("[quota]\nrank_sessions = 1\n");
  daemon.Start();
  RawClient rank = Connected(daemon);
  constexpr uint64_t kHello = 7;
  ASSERT_THAT(HelloAs(rank, kHello), IsOk());
  EXPECT_THAT(HelloAs(rank, kHello), IsOk());
  daemon.KillAndStart();
  EXPECT_THAT(HelloAs(rank, kHello), IsOk());
  // A second Hello is refused as such, and another rank by the quota.
  EXPECT_THAT(HelloAs(rank, kHello + 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has said Hello already")));
  EXPECT_THAT(Connected(daemon).Hello("other"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("attached ranks, and the limit is 1")));
  ExpectServed(rank);
}

// A page of another version may be shorter. Guards against reading past its
// end.
TEST_F(TakeOver, ALimitsPageOfAnotherSizeIsReplaced) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  daemon_.Put("limits", MemoryOf(16));
  daemon_.Start();
  ExpectServed(rank);
  EXPECT_TRUE(daemon_.WaitForLog("page of limits"));
  daemon_.KillAndStart();
  ExpectServed(rank);  // the new page was kept
}

TEST_F(TakeOver, OnlyTheSessionWithABadUsePageEnds) {
  daemon_.Start();
  RawClient rank = Attached(), other = Attached("other");
  daemon_.Kill();
  daemon_.Put("u1", MemoryOf(16));
  daemon_.Start();
  ExpectServed(other);
  EXPECT_THAT(rank.NextEvent(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable));
}

// The keeper has a descriptor that is no extent under an extent's name.
TEST_F(TakeOver, ADescriptorThatIsNoExtentIsNotKept) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Ignore();
  wire::Packet packet;
  packet.set_id(99);
  packet.mutable_request()->mutable_lease()->set_kind(wire::Lease::GPU);
  packet.mutable_request()->mutable_lease()->set_bytes(KiB(64).size());
  ASSERT_THAT(wire::Send(rank.fd(), packet), IsOk());
  absl::SleepFor(absl::Milliseconds(300));  // the extent is made, not stored
  daemon_.Kill();
  daemon_.Put("e1", MemoryOf(16));
  daemon_.Start();
  EXPECT_TRUE(daemon_.WaitUntilGone("e1"));
}

// Guards against waiting 5 s for the keeper at each later lease.
TEST_F(TakeOver, OnlyTheFirstLeaseWaitsForASilentKeeper) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Ignore();
  const auto first = rank.Lease(wire::Lease::GPU, KiB(64));
  ASSERT_THAT(first, IsOk());
  EXPECT_TRUE(daemon_.WaitForLog("until the descriptor store"));
  EXPECT_THAT(HttpGet(daemon_.File("http.sock"), "/metrics"),
              HasSubstr("\nsluice_kept 0\n"));
  const absl::Time before = absl::Now();
  // No idle extent has this size, so a new one is made.
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, KiB(128)), IsOk());
  EXPECT_LT(absl::Now() - before, absl::Seconds(4));
  // The keeper's state is old, so the next daemon starts without a state.
  daemon_.Kill();
  daemon_.Start();
  EXPECT_THAT(rank.NextEvent(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable))
      << daemon_.Log();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
  EXPECT_EQ(pool.leased_bytes() + pool.quarantined_bytes(), 0u);
  RawClient next = Attached("next");
  EXPECT_THAT(next.Lease(wire::Lease::GPU, KiB(64)), IsOk());
}

// Guards against a next daemon that continues from an old state because the
// keeper missed the request to drop it: that daemon would not know the lease
// below, and would lease its memory again.
TEST_F(TakeOver, AfterASilentKeeperTheNextDaemonStartsEmpty) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Ignore();
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, KiB(64)), IsOk());
  EXPECT_TRUE(daemon_.WaitForLog("until the descriptor store"));
  daemon_.Kill();
  daemon_.Start();
  EXPECT_THAT(rank.NextEvent(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable));
  RawClient next = Attached("next");
  EXPECT_THAT(next.Lease(wire::Lease::GPU, KiB(64)), IsOk());
}

// Guards against losing all sessions because a keeper is slow for 5 s.
TEST_F(TakeOver, OnceTheKeeperAnswersAgainRanksStayAttached) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Ignore();
  const auto lease = rank.Lease(wire::Lease::GPU, KiB(64));
  ASSERT_THAT(lease, IsOk());
  EXPECT_TRUE(daemon_.WaitForLog("until the descriptor store"));
  RawClient meanwhile = Attached("meanwhile");
  daemon_.Answer();
  EXPECT_TRUE(daemon_.WaitForLog("is saved from here on"));
  daemon_.KillAndStart();
  ExpectServed(rank);
  ExpectServed(meanwhile);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
  EXPECT_GE(pool.leased_bytes(), static_cast<uint64_t>(KiB(64).count()));
}

// Processes attach and close until the store is full. Guards against one
// process too many, which would prevent the next daemon from taking over any
// session.
TEST(TakeOverOfFew, ProcessesOfEndedSessionsDoNotFillTheStore) {
  constexpr int kCapacity = 60;
  KeptDaemon daemon("", kCapacity);
  daemon.Start();
  std::vector<std::unique_ptr<Child>> ended;
  absl::Status refused;
  while (refused.ok() && ended.size() < kCapacity) {
    ended.push_back(Child::Fork([&] {
      { const RawClient rank = testing::Attached(daemon, "job"); }
      std::puts("closed");
      std::fflush(stdout);
      pause();
    }));
    ASSERT_TRUE(ended.back()->WaitForOutput("closed", absl::Seconds(20)));
    RawClient next = Connected(daemon);
    refused = next.Hello("next").status();
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("kept for the next daemon")));
  // 30 of the 60 places are for extents and 8 for the daemon. A user may have
  // three quarters of the other 22 places: 16. This process has one of them,
  // each ended rank has one, and the refused rank needs three.
  EXPECT_EQ(ended.size(), (60 - 30 - 8) * 3 / 4 - 3);
  EXPECT_TRUE(daemon.Has("state"));
  ended.clear();
  RawClient rank = Connected(daemon);
  for (const absl::Time late = absl::Now() + absl::Seconds(20);
       refused = rank.Hello("job").status(), !refused.ok();) {
    ASSERT_LT(absl::Now(), late) << refused;
    absl::SleepFor(absl::Milliseconds(5));
  }
  daemon.KillAndStart();
  ExpectServed(rank);
}

TEST(TakeOverOfFew, OneUserMayHaveHalfOfTheKeptExtents) {
  KeptDaemon daemon("[pools]\nextent_bytes = \"64KiB\"\n", 200);
  daemon.Start();
  EXPECT_TRUE(daemon.WaitForLog("there may be 100 extents"));
  RawClient rank = Connected(daemon);
  ASSERT_THAT(rank.Hello("job"), IsOk());
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, 40 * KiB(64)), IsOk());
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, 20 * KiB(64)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// Guards against a daemon that waits 5 s for the keeper, which is longer than a
// service may take to stop.
TEST_F(TakeOver, AnEndingDaemonDoesNotWaitForASilentKeeper) {
  daemon_.Start();
  daemon_.Ignore();
  const absl::Time before = absl::Now();
  ASSERT_EQ(kill(daemon_.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon_.Join(), 0);
  EXPECT_LT(absl::Now() - before, absl::Seconds(4));
}

TEST_F(TakeOver, AnEndingDaemonWithRanksDoesNotWaitForASilentKeeper) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Ignore();
  const absl::Time before = absl::Now();
  ASSERT_EQ(kill(daemon_.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon_.Join(), 0);
  EXPECT_LT(absl::Now() - before, absl::Seconds(4));
}

}  // namespace
}  // namespace sluice::testing
