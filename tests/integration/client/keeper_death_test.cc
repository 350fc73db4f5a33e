// Tests the death of a sluiced-keeper while its daemon has a session: the
// daemon logs it and continues. The daemon's own death then ends the session.
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/under_keeper.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kExtent = KiB(64);
constexpr const char* kLost = "sluiced-keeper died";

class KeeperOfRanks : public ::testing::Test {
 protected:
  KeeperOfRanks() {
    std::ofstream(config_.File("sluiced.toml"))
        << "[http]\nlisten = \"\"\n[device]\ndriver = \"sim\"\n"
           "[restart]\nfreeze_after = 0\n[pools]\nextent_bytes = \"64KiB\"\n";
    under_ = std::make_unique<UnderKeeper>(
        UnderKeeper::Of{.more = {"--config", config_.File("sluiced.toml")}});
    auto session = client::Session::Open({.socket = under_->socket()});
    SLUICE_CHECK_OK(session.status());
    session_ = *std::move(session);
  }

  std::unique_ptr<client::Region> Leased(Bytes size, std::byte with) {
    auto region = session_->LeaseHost(size);
    SLUICE_CHECK_OK(region.status());
    std::fill_n((*region)->data(), (*region)->size().count(), with);
    return *std::move(region);
  }
  static bool IsFull(const client::Region& region, std::byte of) {
    return std::all_of(region.data(), region.data() + region.size().count(),
                       [&](std::byte each) { return each == of; });
  }
  void ExpectMetric(const std::string& line) {
    EXPECT_THAT(HttpGet(under_->File("http.sock"), "/metrics"),
                HasSubstr("\n" + line + "\n"));
  }
  bool Exists(const std::string& name) const {
    return std::filesystem::exists(under_->File(name));
  }
  void LoseKeeper() {
    under_->KillKeeper();
    ASSERT_TRUE(under_->WaitForLog(kLost)) << under_->Log();
  }

  TempDir config_;
  std::unique_ptr<UnderKeeper> under_;
  std::unique_ptr<client::Session> session_;
};

TEST_F(KeeperOfRanks, TheKeepersDeathIsLoggedOnceAndTheSessionContinues) {
  const pid_t daemon = under_->daemon();
  const auto held = Leased(20 * kExtent, std::byte{7});
  ExpectMetric("sluice_kept 1");
  LoseKeeper();
  for (int i = 1; i <= 50; ++i) {
    // Sizes differ, so that extents are not reused but made.
    const auto region = Leased((1 + i % 37) * kExtent, std::byte{1});
    EXPECT_TRUE(IsFull(*region, std::byte{1}));
  }
  EXPECT_THAT(
      client::Session::Open({.socket = under_->socket(), .job = "another"}),
      IsOk());
  ExpectMetric("sluice_kept 0");
  EXPECT_EQ(under_->Log().find(kLost), under_->Log().rfind(kLost));
  EXPECT_EQ(under_->Log().find("is not saved"), std::string::npos)
      << under_->Log();
  EXPECT_EQ(under_->daemon(), daemon);
  EXPECT_TRUE(IsFull(*held, std::byte{7}));
}

TEST_F(KeeperOfRanks, ALeaseThatWaitsForADyingKeeperIsGranted) {
  const pid_t keeper = under_->keeper();
  kill(keeper, SIGSTOP);
  std::unique_ptr<client::Region> region;
  std::thread rank([&] { region = Leased(5 * kExtent, std::byte{1}); });
  absl::SleepFor(absl::Milliseconds(200));  // the lease waits for the keeper
  kill(keeper, SIGKILL);
  rank.join();
  EXPECT_TRUE(IsFull(*region, std::byte{1}));
}

// With a keeper, SIGHUP ends the daemon, and the next daemon reads the
// configuration. Without a keeper no next daemon would start.
TEST_F(KeeperOfRanks, SighupDoesNotEndADaemonWithoutAKeeper) {
  const auto held = Leased(kExtent, std::byte{1});
  LoseKeeper();
  kill(under_->daemon(), SIGHUP);
  EXPECT_TRUE(under_->WaitForLog("SIGHUP")) << under_->Log();
  const auto more = Leased(3 * kExtent, std::byte{2});
  EXPECT_TRUE(IsFull(*held, std::byte{1}));
}

TEST_F(KeeperOfRanks, TheDeathOfADaemonWithoutAKeeperEndsTheSession) {
  const auto held = Leased(5 * kExtent, std::byte{1});
  LoseKeeper();
  under_->KillDaemon();
  const absl::Time before = absl::Now();
  EXPECT_THAT(session_->LeaseHost(kExtent),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(client::Session::Open({.socket = under_->socket()}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
  EXPECT_TRUE(IsFull(*held, std::byte{1}));  // what is mapped stays
}

TEST_F(KeeperOfRanks, ADaemonWithoutAKeeperEndsInOrder) {
  const auto held = Leased(5 * kExtent, std::byte{1});
  LoseKeeper();
  EXPECT_TRUE(under_->End()) << under_->Log();
  EXPECT_THAT(session_->LeaseHost(kExtent),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(Exists("session.sock") || Exists("admin.sock") || Exists("sim"));
}

}  // namespace
}  // namespace sluice::testing
