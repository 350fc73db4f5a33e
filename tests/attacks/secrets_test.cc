// A user must never read what another user wrote into memory that is leased
// again. In the first test a child of the first user still maps the memory
// while the second user leases.
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/scene.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kFirst = 61234, kSecond = 61235;
constexpr uint64_t kSecret = 0x5ec2e75ec2e75ec2, kReply = 0xb0b5b0b5b0b5b0b5;
constexpr Bytes kPool = MiB(16), kPiece = MiB(1);
constexpr char kSecretsNode[] =
    "[sim]\ngpus = 1\ngpu_memory = \"16MiB\"\nhost_memory = \"16MiB\"\n";

// Leases all memory of both kinds in pieces, and maps it until the process
// ends.
class Holdings {
 public:
  void LeaseAll(RawClient& client) {
    for (const auto kind : {wire::Lease::GPU, wire::Lease::HOST}) {
      while (true) {
        auto lease = client.Lease(kind, kPiece);
        if (!lease.ok()) break;
        const auto& granted = lease->body.granted();
        for (size_t i = 0; i < lease->fds.size(); ++i) {
          Map(lease->fds[i], granted.extent_bytes(static_cast<int>(i)));
        }
      }
    }
  }
  void Write(uint64_t word) const {
    for (const auto& words : mapped_) {
      for (uint64_t& at : words) at = word;
    }
  }
  bool Holds(uint64_t word) const {
    for (const auto& words : mapped_) {
      for (const uint64_t at : words) {
        if (at == word) return true;
      }
    }
    return false;
  }
  Bytes size() const {
    Bytes sum;
    for (const auto& words : mapped_) {
      sum += Bytes(static_cast<int64_t>(words.size_bytes()));
    }
    return sum;
  }

 private:
  void Map(const UniqueFd& fd, uint64_t bytes) {
    void* const data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(data, MAP_FAILED);
    mapped_.emplace_back(static_cast<uint64_t*>(data), bytes / 8);
  }
  std::vector<std::span<uint64_t>> mapped_;
};

struct Shared {
  std::atomic<bool> seen;  // the first user's child saw the second's secret
};

Shared* Share() {
  void* const page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(page, MAP_FAILED);
  return new (page) Shared();
}

// Looks for the second user's secret until the other end of `leave` is closed.
[[noreturn]] void WatchMemory(const Holdings& held, int leave, Shared* shared) {
  SayReady();
  close(STDOUT_FILENO);
  close(STDERR_FILENO);
  pollfd left = {.fd = leave, .events = POLLIN, .revents = 0};
  while (poll(&left, 1, 10) == 0) {
    if (held.Holds(kReply)) shared->seen = true;
  }
  _exit(0);
}

// The first user: leases all memory, writes the secret, and ends. Its child,
// which has no session, keeps the mappings.
void BeFirst(const std::string& socket, int leave, Shared* shared) {
  Become(kFirst);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Hello("first"), IsOk());
  Holdings held;
  held.LeaseAll(client);
  ASSERT_GT(held.size(), kPool);  // memory of both kinds
  held.Write(kSecret);
  if (fork() != 0) return;
  client.socket().Reset();
  WatchMemory(held, leave, shared);
}

// The second user: leases all available memory again and again, looks for the
// secret and writes its own. Prints the most memory that it got.
void BeSecond(const std::string& socket) {
  Become(kSecond);
  Bytes most;
  for (int i = 0; i < 20; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
    if (client.Hello(fmt::format("second{}", i)).ok()) {
      Holdings held;
      held.LeaseAll(client);
      EXPECT_FALSE(held.Holds(kSecret));
      held.Write(kReply);
      most = std::max(most, held.size());
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  fmt::print("got {}\n", most.count());
}

void BeUnknown(const std::string& socket, uid_t user) {
  Become(user);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  EXPECT_THAT(SayHello(client, "stranger", /*rank=*/true),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("user")));
}

class Secrets : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0)
      GTEST_SKIP() << "only root can start processes of other users";
  }
};

TEST_F(Secrets, NoUserReadsAnotherUsersMemory) {
  RunningDaemon daemon(kSecretsNode);
  ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
  Shared* const shared = Share();
  int leave[2];
  ASSERT_EQ(pipe(leave), 0);
  const auto first = Child::Fork([&] {
    close(leave[1]);
    BeFirst(daemon.socket(), leave[0], shared);
  });
  ASSERT_TRUE(first->WaitForOutput("ready", absl::Seconds(30)));
  first->ExpectSuccess();
  const auto beside = Child::Fork([&] { BeSecond(daemon.socket()); });
  beside->ExpectSuccess();
  EXPECT_FALSE(shared->seen);
  // The first user's child still maps all memory, so the daemon leases none.
  EXPECT_NE(beside->output().find("got 0\n"), std::string::npos)
      << beside->output();
  close(leave[1]);
  ASSERT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
  const auto after = Child::Fork([&] { BeSecond(daemon.socket()); });
  after->ExpectSuccess();  // finds no secret in the memory that it gets
  EXPECT_EQ(after->output().find("got 0\n"), std::string::npos);
}

// Guards against a user namespace that maps only root: both users are 65534 in
// it, so the second would find the secret of the first in each extent.
TEST_F(Secrets, UsersThatANamespaceCannotTellApartAreRefused) {
  RunningDaemon daemon(kSecretsNode, {.user_namespace = true});
  ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
  for (const uid_t user : {kFirst, kSecond}) {
    Child::Fork([&] { BeUnknown(daemon.socket(), user); })->ExpectSuccess();
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient root,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(root.Hello("root"), IsOk());
}

}  // namespace
}  // namespace sluice::testing
