// Who a peer is, by both ways of getting its pidfd, and how it ended.
#include "daemon/service/peer.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::Child;
using sluice::testing::StatusIs;
using sluice::testing::TempDir;

// A child that connects to us, says so and does `then`.
class ConnectedChild {
 public:
  explicit ConnectedChild(std::function<void()> then) {
    auto listener = wire::Listen(directory_.File("s"), 0600);
    EXPECT_TRUE(listener.ok()) << listener.status();
    child = Child::Fork([&] {
      auto fd = wire::Connect(directory_.File("s"));
      ASSERT_TRUE(fd.ok()) << fd.status();
      then();
    });
    socket = UniqueFd(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  std::unique_ptr<Child> child;
  UniqueFd socket;

 private:
  TempDir directory_;
};

class PeerTest : public ::testing::TestWithParam<bool> {};

TEST_P(PeerTest, IsTheProcessThatConnected) {
  ConnectedChild peer([] { pause(); });
  SLUICE_ASSERT_OK_AND_ASSIGN(const Identity identity,
                              IdentifyPeer(peer.socket.get(), GetParam()));
  EXPECT_EQ(identity.peer.pid, peer.child->pid());
  EXPECT_EQ(identity.peer.principal.uid, geteuid());
  EXPECT_EQ(identity.peer.principal.cgroup.substr(0, 1), "/");
  EXPECT_GT(identity.peer.start_ticks, 0u);
  pollfd ended = {.fd = identity.pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 0), 0);
  peer.child->Kill(SIGKILL);
  EXPECT_EQ(poll(&ended, 1, 5000), 1);
  const Exit exit = ReadExit(identity.pidfd.get(), identity.peer);
  EXPECT_EQ(exit.kind, Exit::Kind::kSignal);
  EXPECT_EQ(exit.code, SIGKILL);
}

TEST_P(PeerTest, ExitStatusIsToldBeforeItIsReaped) {
  ConnectedChild peer([] {
    char byte;
    [[maybe_unused]] const ssize_t got = read(STDIN_FILENO, &byte, 1);
    usleep(50'000);
    _exit(7);
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const Identity identity,
                              IdentifyPeer(peer.socket.get(), GetParam()));
  pollfd ended = {.fd = identity.pidfd.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&ended, 1, 5000), 1);
  const Exit exit = ReadExit(identity.pidfd.get(), identity.peer);
  EXPECT_EQ(exit.kind, Exit::Kind::kStatus);
  EXPECT_EQ(exit.code, 7);
}

TEST_P(PeerTest, OneThatEndedBeforeItWasIdentifiedIsRefused) {
  ConnectedChild peer([] { _exit(0); });
  peer.child->Join();
  EXPECT_THAT(IdentifyPeer(peer.socket.get(), GetParam()),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

INSTANTIATE_TEST_SUITE_P(, PeerTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "SoPeerPidfd" : "PidfdOpen";
});

TEST(Cgroup, IsTheUnifiedPathOrTheMemoryControllers) {
  EXPECT_EQ(CgroupFrom("0::/user.slice/a.scope\n"), "/user.slice/a.scope");
  EXPECT_EQ(CgroupFrom("4:memory:/jobs/7\n1:cpu:/x\n0::/\n"), "/jobs/7");
  EXPECT_EQ(CgroupFrom("4:memory:/jobs/7\n0::/unified\n"), "/unified");
  EXPECT_EQ(CgroupFrom("0::/a:b\n"), "/a:b");
  EXPECT_EQ(CgroupFrom(""), "/");
}

}  // namespace
}  // namespace sluice::daemon
