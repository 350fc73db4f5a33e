// Tests how a peer is identified, by SO_PEERPIDFD or pidfd_open, and how its
// exit status is read.
#include "daemon/service/identity/peer.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire.h"
#include "tests/support/child.h"
#include "tests/support/no_pidfds.h"
#include "tests/support/sanitizer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::Child;
using sluice::testing::kThreadSanitizer;
using sluice::testing::StatusIs;
using sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A child process that connects to this process and then calls `then`.
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

TEST_P(PeerTest, ThePeerIsTheProcessThatConnected) {
  ConnectedChild peer([] { pause(); });
  SLUICE_ASSERT_OK_AND_ASSIGN(const Identity identity,
                              IdentifyPeer(peer.socket.get(), {}, GetParam()));
  EXPECT_EQ(identity.peer.pid, peer.child->pid());
  EXPECT_EQ(identity.peer.principal.uid, geteuid());
  EXPECT_EQ(identity.peer.principal.cgroup, "");
  EXPECT_GT(identity.peer.start_ticks, 0u);
  pollfd ended = {.fd = identity.pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 0), 0);
  peer.child->Kill(SIGKILL);
  EXPECT_EQ(poll(&ended, 1, 5000), 1);
  const Exit exit = ReadExit(identity.pidfd.get(), identity.peer);
  EXPECT_EQ(exit.kind, Exit::Kind::kSignal);
  EXPECT_EQ(exit.code, SIGKILL);
}

TEST_P(PeerTest, ExitStatusIsReadBeforeThePeerIsReaped) {
  int leave[2];
  ASSERT_EQ(pipe(leave), 0);
  const UniqueFd waits(leave[0]);
  UniqueFd end(leave[1]);
  ConnectedChild peer([&] {
    end.Reset();
    char byte;  // waits until the peer is identified
    [[maybe_unused]] const ssize_t got = read(waits.get(), &byte, 1);
    _exit(7);
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const Identity identity,
                              IdentifyPeer(peer.socket.get(), {}, GetParam()));
  end.Reset();
  pollfd ended = {.fd = identity.pidfd.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&ended, 1, 5000), 1);
  const Exit exit = ReadExit(identity.pidfd.get(), identity.peer);
  EXPECT_EQ(exit.kind, Exit::Kind::kStatus);
  EXPECT_EQ(exit.code, 7);
}

TEST_P(PeerTest, APeerThatEndedBeforeItWasIdentifiedIsRefused) {
  ConnectedChild peer([] { _exit(0); });
  peer.child->Join();
  EXPECT_THAT(IdentifyPeer(peer.socket.get(), {}, GetParam()),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

// The error must not say "ended before it was identified".
TEST_P(PeerTest, LackOfDescriptorsIsNotBlamedOnThePeer) {
  ConnectedChild peer([] { pause(); });
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  // The kernel returns the lowest free descriptor.
  const int next = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
  for (int more = 0; more < 3; ++more) {
    const rlimit low = {static_cast<rlim_t>(next + more), limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const auto identity = IdentifyPeer(peer.socket.get(), {}, GetParam());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (identity.ok()) continue;  // there were enough descriptors
    EXPECT_THAT(identity, StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("no file descriptor left")));
  }
}

// The error must not say "ended before it was identified".
TEST(PeerSandbox, ASandboxThatRefusesPidfdsIsNamed) {
  ConnectedChild peer([] { pause(); });
  for (const int error : {EPERM, ENOSYS}) {
    Child::Fork([&] {
      ASSERT_TRUE(testing::RefusePidfds(error));
      EXPECT_THAT(
          IdentifyPeer(peer.socket.get(), {}, /*use_peerpidfd=*/false),
          StatusIs(absl::StatusCode::kPermissionDenied,
                   AllOf(HasSubstr("pidfd_open"), HasSubstr("is refused here"),
                         HasSubstr("seccomp profile"))));
    })->ExpectSuccess();
  }
}

// The error must not say "ended before it was identified".
TEST_P(PeerTest, APeerHiddenByProcIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount";
  ConnectedChild peer([] { pause(); });
  Child::Fork([&] {
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount("proc", "/proc", "proc", 0, "hidepid=2"), 0);
    ASSERT_EQ(setgroups(0, nullptr), 0);  // hidepid exempts root's group
    ASSERT_EQ(setresgid(1234, 1234, 1234), 0);
    ASSERT_EQ(setresuid(1234, 1234, 1234), 0);
    EXPECT_THAT(IdentifyPeer(peer.socket.get(), {}, GetParam()),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("runs, but /proc hides it from user "
                                         "1234"),
                               HasSubstr("hidepid"))));
  })->ExpectSuccess();
}

INSTANTIATE_TEST_SUITE_P(, PeerTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "SoPeerPidfd" : "PidfdOpen";
});

TEST(PeerCgroup, ThePeersCgroupIsCutAtTheConfiguredPrefix) {
  ConnectedChild peer([] { pause(); });
  SLUICE_ASSERT_OK_AND_ASSIGN(const CgroupCut all, CgroupCut::Make({"/"}));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Identity identity,
                              IdentifyPeer(peer.socket.get(), {all, {}}));
  EXPECT_EQ(identity.peer.principal.cgroup.substr(0, 1), "/");
}

bool WriteFile(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && write(fd.get(), text.data(), text.size()) ==
                   static_cast<ssize_t>(text.size());
}

// Changes the user, and gives /proc/self to the new user.
void BecomeUser(uid_t uid) {
  ASSERT_EQ(setresuid(uid, uid, uid), 0);
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

constexpr char kNeedsRoot[] = "only root can take another user's place";
// ThreadSanitizer has a thread of its own.
constexpr char kNeedsOneThread[] =
    "a process of several threads makes no user namespace";

// Guards against two users that look the same in `unshare -U --map-root-user`:
// the second would get the first user's memory.
TEST(PeerUser, AUserThatTheNamespaceDoesNotMapIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << kNeedsRoot;
  if (kThreadSanitizer) GTEST_SKIP() << kNeedsOneThread;
  TempDir directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              wire::Listen(directory.File("s"), 0666));
  const auto other = Child::Fork([&] {
    BecomeUser(1234);
    const auto fd = wire::Connect(directory.File("s"));
    ASSERT_TRUE(fd.ok()) << fd.status();
    pause();
  });
  Child::Fork([&] {
    ASSERT_EQ(unshare(CLONE_NEWUSER), 0);
    ASSERT_TRUE(WriteFile("/proc/self/uid_map", "0 0 1"));
    const UniqueFd socket(
        accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_THAT(IdentifyPeer(socket.get(), {{}, UserMap::OfThisProcess()}),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr("in a user namespace that sluiced cannot")));
  })->ExpectSuccess();
}

// Guards against counting a user's subordinate users as many principals.
TEST(PeerUser, ASubordinateUserCountsAsItsNamespacesOwner) {
  if (geteuid() != 0) GTEST_SKIP() << kNeedsRoot;
  if (kThreadSanitizer) GTEST_SKIP() << kNeedsOneThread;
  TempDir directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              wire::Listen(directory.File("s"), 0666));
  const auto rootless = Child::Fork([&] {
    BecomeUser(1234);
    ASSERT_EQ(unshare(CLONE_NEWUSER), 0);
    ASSERT_EQ(write(STDOUT_FILENO, "made\n", 5), 5);
    while (setresuid(7, 7, 7) != 0) usleep(1000);  // until user 7 is mapped
    const auto fd = wire::Connect(directory.File("s"));
    ASSERT_TRUE(fd.ok()) << fd.status();
    pause();
  });
  ASSERT_TRUE(rootless->WaitForOutput("made", absl::Seconds(10)));
  ASSERT_TRUE(WriteFile("/proc/" + std::to_string(rootless->pid()) + "/uid_map",
                        "0 1234 1\n1 100000 100\n"));
  const UniqueFd socket(
      accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred credentials;
  socklen_t size = sizeof(credentials);
  ASSERT_EQ(
      getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size),
      0);
  ASSERT_EQ(credentials.uid, 100006u);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Identity identity,
      IdentifyPeer(socket.get(), {{}, UserMap::OfThisProcess()}));
  EXPECT_EQ(identity.peer.principal.uid, 1234u);
}

TEST(Cgroup, ACgroupIsTheUnifiedPathOrTheMemoryControllers) {
  EXPECT_EQ(CgroupFrom("0::/user.slice/a.scope\n"), "/user.slice/a.scope");
  EXPECT_EQ(CgroupFrom("4:memory:/jobs/7\n1:cpu:/x\n0::/\n"), "/jobs/7");
  EXPECT_EQ(CgroupFrom("4:memory:/jobs/7\n0::/unified\n"), "/unified");
  EXPECT_EQ(CgroupFrom("0::/a:b\n"), "/a:b");
  EXPECT_EQ(CgroupFrom(""), "/");
}

}  // namespace
}  // namespace sluice::daemon
