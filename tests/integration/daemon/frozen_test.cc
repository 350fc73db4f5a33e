// Tests a frozen daemon: the state that it finds cannot be continued, or
// daemons died too often. It keeps the memory of jobs, grants nothing, and
// reports why.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/store/starter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHttp[] = "[http]\nlisten = \"127.0.0.1:0\"\n";

class FrozenDaemonTest : public ::testing::Test {
 protected:
  RawClient Connected() { return testing::Connected(daemon_); }
  RawClient Attached(const std::string& job = "job") {
    return AttachedWithMemory(daemon_, job);
  }
  void ExpectFrozen(const std::string& why) {
    EXPECT_THAT(
        Connected().Observe(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("sluiced is frozen"), HasSubstr(why))));
  }
  // Expects that --check-state refuses the kept state for the reason `why`.
  void ExpectUpgradeRefused(const std::string& why) {
    const ChildResult said = daemon_.CheckState();
    EXPECT_NE(said.exit_code, 0) << said.out;
    EXPECT_THAT(said.err, HasSubstr(why));
  }
  void ExpectServed(RawClient& rank) { ExpectKept(daemon_, rank); }
  // Ends the daemon as an administrator would.
  void End(int signal) {
    ASSERT_EQ(kill(daemon_.pid(), signal), 0);
    EXPECT_EQ(daemon_.Join(), 0);
  }

  KeptDaemon daemon_{"[restart]\nfreeze_after = 5\n"};
};

// Overwrites every 64th byte of the kept state.
void Damage(const UniqueFd& state) {
  const off_t size = lseek(state.get(), 0, SEEK_END);
  for (off_t at = 64; at < size; at += 64) {
    const char wrong = '\x5a';
    ASSERT_EQ(pwrite(state.get(), &wrong, 1, at), 1);
  }
}

TEST_F(FrozenDaemonTest, ADamagedStateEndsNoJob) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  const UniqueFd state = daemon_.Copy("state");
  std::string good(static_cast<size_t>(lseek(state.get(), 0, SEEK_END)), '\0');
  ASSERT_EQ(pread(state.get(), good.data(), good.size(), 0),
            static_cast<ssize_t>(good.size()));
  Damage(state);
  const int extents = daemon_.Count("e");
  daemon_.Start();
  ExpectFrozen("damaged");
  EXPECT_THAT(rank.NextEvent(absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(daemon_.Has("s1") && daemon_.Has("u1") && daemon_.Has("limits"));
  EXPECT_EQ(daemon_.Count("e"), extents);
  // Only the state needs repair: the frozen daemon changed nothing.
  ASSERT_EQ(pwrite(state.get(), good.data(), good.size(), 0),
            static_cast<ssize_t>(good.size()));
  End(SIGTERM);
  daemon_.Start();
  ExpectServed(rank);
}

TEST_F(FrozenDaemonTest, AMissingExtentEndsNoJob) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  UniqueFd extent = daemon_.Copy("e1");
  daemon_.Lose("e1");
  daemon_.Start();
  ExpectFrozen("was not kept");
  // Guards against a --check-state that reports "good" though daemons freeze.
  ExpectUpgradeRefused("extent 1 of GPU 0 was not kept");
  daemon_.Kill();
  daemon_.Put("e1", std::move(extent));
  daemon_.Start();
  ExpectServed(rank);
}

TEST_F(FrozenDaemonTest, ANodeWithoutTheGpuEndsNoJob) {
  daemon_.Start();
  RawClient rank = Connected();
  ASSERT_THAT(rank.Hello("job", 0, 1, 1), IsOk());
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, MiB(4), 1), IsOk());
  daemon_.Kill();
  const std::string file = daemon_.File("sluiced.toml");
  std::filesystem::copy_file(file, daemon_.File("two.toml"));
  std::ofstream(file, std::ios::app) << "[sim]\ngpus = 1\n";
  daemon_.Start();
  ExpectFrozen("GPU 1");
  // The configuration is repaired, and the next daemon reads it.
  std::filesystem::rename(daemon_.File("two.toml"), file);
  End(SIGHUP);
  daemon_.Start();
  const auto event = rank.NextEvent(absl::Seconds(20));
  ASSERT_THAT(event, IsOk()) << daemon_.Log();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 1));
  EXPECT_EQ(pool.leased_bytes(), MiB(4).size());
}

TEST_F(FrozenDaemonTest, APoolSmallerThanItsLeasesEndsNoJob) {
  daemon_.Start();
  RawClient rank = Attached();
  ASSERT_THAT(rank.Lease(wire::Lease::GPU, MiB(12)), IsOk());
  daemon_.Kill();
  const std::string file = daemon_.File("sluiced.toml");
  std::filesystem::copy_file(file, daemon_.File("large.toml"));
  std::ofstream(file, std::ios::app) << "[pools]\ngpu_bytes = \"8MiB\"\n";
  daemon_.Start();
  ExpectFrozen("as large again ([pools] gpu_bytes)");
  std::filesystem::rename(daemon_.File("large.toml"), file);
  End(SIGHUP);
  daemon_.Start();
  ASSERT_THAT(rank.NextEvent(absl::Seconds(20)), IsOk()) << daemon_.Log();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto pool, GpuPool(daemon_.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), MiB(16).size());
}

// Guards against starts that fail again and again, and against a --check-state
// that reports such a policy as "good".
TEST_F(FrozenDaemonTest, APolicyOfANewerDaemonEndsNoJob) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  const std::string file = daemon_.File("policy");
  // First a section that this daemon does not know, then a reservation of more
  // memory than the node has.
  const std::string_view head =
      R"({"sluice_policy": 1, "limits": [], "drained": null, )";
  for (const auto& [section, why] :
       {std::pair(R"("later": {}})",
                  "the file has an unknown 'later'; mend it"),
        std::pair(R"("reservations": [{"gpu": 0, "uid": 1, "by": "",
                     "bytes": 68719476736, "at_unix_s": 1}]})",
                  "the policy reserves 64 GiB of GPU 0")}) {
    std::ofstream(file) << head << section;
    std::filesystem::permissions(file, std::filesystem::perms::owner_read |
                                           std::filesystem::perms::owner_write);
    daemon_.Start();
    ExpectFrozen(why);
    EXPECT_TRUE(daemon_.Has("state") && daemon_.Has("s1") && daemon_.Has("u1"));
    EXPECT_TRUE(std::filesystem::exists(file))
        << "the file belongs to the newer daemon";
    ExpectUpgradeRefused(why);
    daemon_.Kill();
  }
  std::filesystem::remove(file);
  daemon_.Start();
  ExpectServed(rank);
}

TEST_F(FrozenDaemonTest, FiveDeathsInTenSecondsFreezeTheNextDaemon) {
  daemon_.Start();
  RawClient rank = Attached();
  for (int death = 1; death <= 5; ++death) {
    daemon_.Kill();
    daemon_.Start();
    const bool serves = Connected().Observe().ok();
    EXPECT_EQ(serves, death < 5) << death;
  }
  ExpectFrozen("5 daemons died within 10 s");
  // The operator repairs the cause and restarts the daemon, which counts deaths
  // from 0.
  End(SIGTERM);
  daemon_.Start();
  for (int taken_over = 1; taken_over <= 4; ++taken_over) {
    EXPECT_THAT(rank.NextEvent(absl::Seconds(20)), IsOk());
  }
  ExpectServed(rank);
  daemon_.KillAndStart();
  ExpectServed(rank);
}

TEST_F(FrozenDaemonTest, AfterFailedStartsTheFrozenDaemonSaysWhy) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  const std::string file = daemon_.File("sluiced.toml");
  std::filesystem::copy_file(file, daemon_.File("good.toml"));
  std::ofstream(file, std::ios::app) << "[worker]\nmemory = \"much\"\n";
  for (int start = 1; start <= 4; ++start) {
    EXPECT_EQ(daemon_.StartThatFails(), 2) << start;
  }
  daemon_.Start();
  ExpectFrozen("5 daemons died within 10 s, and the last that said why: ");
  EXPECT_TRUE(daemon_.WaitForLog("'much' is not a size"));
  std::filesystem::rename(daemon_.File("good.toml"), file);
  End(SIGHUP);
  daemon_.Start();
  ExpectServed(rank);
}

TEST_F(FrozenDaemonTest, AnOrderlyEndDoesNotCountAsADeath) {
  daemon_.Start();
  RawClient rank = Attached();
  for (int i = 0; i < 6; ++i) {
    End(SIGTERM);
    daemon_.Start();
    EXPECT_THAT(rank.NextEvent(absl::Seconds(20)), IsOk());
  }
  EXPECT_THAT(Connected().Observe(), IsOk());
}

// Ends the daemon as a stopped `sluiced-keeper` does.
TEST_F(FrozenDaemonTest, AFrozenDaemonEndsWithItsService) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  Damage(daemon_.Copy("state"));
  daemon_.Start();
  ExpectFrozen("damaged");
  const sigval ends = {.sival_int = daemon::kEndsService};
  ASSERT_EQ(sigqueue(daemon_.pid(), SIGTERM, ends), 0);
  EXPECT_EQ(daemon_.Join(), 0);
  EXPECT_EQ(daemon_.Count(""), 0);
  for (const char* left :
       {"session.sock", "admin.sock", "http.sock", "sim", "lock"}) {
    EXPECT_FALSE(std::filesystem::exists(daemon_.File(left))) << left;
  }
  EXPECT_THAT(rank.NextEvent(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable));
}

// Guards against a daemon that waits 5 s for the keeper's answer.
TEST_F(FrozenDaemonTest, AFrozenDaemonsEndDoesNotWaitForADeadKeeper) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  Damage(daemon_.Copy("state"));
  daemon_.Start();
  daemon_.Ignore();
  const absl::Time before = absl::Now();
  const sigval ends = {.sival_int = daemon::kEndsService};
  ASSERT_EQ(sigqueue(daemon_.pid(), SIGTERM, ends), 0);
  EXPECT_EQ(daemon_.Join(), 0);
  EXPECT_LT(absl::Now() - before, absl::Seconds(4));
}

TEST(FrozenPages, PagesSayThatAFrozenDaemonLivesAndIsNotReady) {
  KeptDaemon daemon(std::string(kHttp) + "[restart]\nfreeze_after = 5\n");
  daemon.Start();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(rank.Hello("job"), IsOk());
  const std::string address = daemon.File("http.sock");
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("\nsluice_frozen 0\n"));
  daemon.Kill();
  Damage(daemon.Copy("state"));
  daemon.Start();
  EXPECT_THAT(HttpGet(address, "/healthz"),
              AllOf(HasSubstr(" 200 "), HasSubstr("frozen: ")));
  EXPECT_THAT(HttpGet(address, "/readyz"),
              AllOf(HasSubstr(" 503 "), HasSubstr("damaged")));
  EXPECT_THAT(HttpGet(address, "/metrics"),
              AllOf(HasSubstr(" 200 "), HasSubstr("\nsluice_frozen 1\n"),
                    HasSubstr("process_open_fds")));
  EXPECT_THAT(HttpGet(address, "/status.json"), HasSubstr(" 503 "));
}

TEST_F(FrozenDaemonTest, AdministratorsAreToldTheReason) {
  daemon_.Start();
  RawClient rank = Attached();
  daemon_.Kill();
  Damage(daemon_.Copy("state"));
  daemon_.Start();
  for (const char* command : {"status", "drain", "undrain"}) {
    const ChildResult said =
        Child::Spawn({BinaryPath("sluicectl"), "--admin-socket",
                      daemon_.File("admin.sock"), "--admin", command})
            ->Join();
    EXPECT_NE(said.exit_code, 0);
    EXPECT_THAT(said.err,
                AllOf(HasSubstr("sluiced is frozen"), HasSubstr("damaged")))
        << command;
  }
}

}  // namespace
}  // namespace sluice::testing
