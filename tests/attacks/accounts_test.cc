// Attacks by several accounts, or by one account with many jobs, on what all
// users share: sessions, a pool, plans, events. See scene.h.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/edge_attackers.h"
#include "tests/attacks/scene.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

constexpr int kAccounts = 5;
constexpr uid_t kWitness = 61300;

class Accounts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0)
      GTEST_SKIP() << "only root can start processes of other users";
  }

  void TakeByAll(const std::string& name, int each, bool ranks) {
    for (uid_t i = 0; i < kAccounts; ++i) {
      scene_.Attack([&] { TakeSessions(scene_.socket(), each, ranks); },
                    kAttacker + i);
    }
    ExpectUnharmed(scene_.Suffer(name));
  }

  Scene scene_;
};

// Guards against a few accounts that together hold all 2,048 sessions.
TEST_F(Accounts, FiveAccountsLeaveSessionsForOthers) {
  TakeByAll("sessions of five users", 600, /*ranks=*/false);
}

// Guards against a few accounts that together hold all 256 rank slots.
TEST_F(Accounts, FiveAccountsLeaveRankSlotsForOthers) {
  TakeByAll("rank slots of five users", 150, /*ranks=*/true);
}

TEST_F(Accounts, AWaitingLeaseBlocksNoOtherUsersLease) {
  scene_.Attack([&] { ParkLease(scene_.socket()); });
  ExpectUnharmed(scene_.Suffer("a parked lease"));
}

// Connects as a job of its own, submits a small profile, and returns the time
// from the submission to the arrival of the plan.
absl::StatusOr<absl::Duration> TimeOfAPlan(const std::string& socket,
                                           int number) {
  SLUICE_ASSIGN_OR_RETURN(RawClient client, RawClient::Connect(socket));
  SLUICE_RETURN_IF_ERROR(
      client.Hello(fmt::format("planner{}", number)).status());
  SLUICE_ASSIGN_OR_RETURN(
      const UniqueFd profile,
      wire::ToMemfd("profile", Numbered(SmallProfile(), number)));
  wire::Request submit;
  submit.mutable_submit_profile();
  const absl::Time start = absl::Now();
  SLUICE_RETURN_IF_ERROR(client.Call(submit, {profile.get()}).status());
  SLUICE_ASSIGN_OR_RETURN(const wire::Event event,
                          client.NextEvent(absl::Seconds(60)));
  if (!event.has_plan_ready()) {
    return absl::InternalError(event.ShortDebugString());
  }
  return absl::Now() - start;
}

// Guards against a queue in which another user's profile waits 13 s behind hard
// profiles.
TEST_F(Accounts, HardProfilesDelayNoOtherUsersPlan) {
  scene_.Attack([&] { FloodHardProfiles(scene_.socket(), Count(4, 8)); });
  absl::Duration most;
  for (int i = 0; i < Count(3, 20); ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const absl::Duration time,
                                TimeOfAPlan(scene_.socket(), i));
    most = std::max(most, time);
  }
  fmt::print("| hard profiles | an honest plan took at most {:.2f} s |\n",
             absl::ToDoubleSeconds(most));
  if (Deep()) {
    EXPECT_LE(most, absl::Seconds(2));
  }
  ExpectUnharmed(scene_.Suffer("hard profiles, each different"));
}

// Attaches, waits until the other end of `leave` is closed, and expects that
// the daemon still shows this user's event.
void Witness(const std::string& socket, int leave) {
  Become(kWitness);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Hello("witness"), IsOk());
  SayReady();
  pollfd left = {.fd = leave, .events = POLLIN, .revents = 0};
  poll(&left, 1, -1);
  wire::Request query;
  query.mutable_query();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, client.Call(query));
  std::string json = reply.body.snapshot().json();
  if (json.empty()) {
    SLUICE_ASSERT_OK_AND_ASSIGN(json, wire::FromMemfd(reply.fds.at(0)));
  }
  EXPECT_THAT(json, ::testing::HasSubstr("rank 0 of job witness"));
}

TEST_F(Accounts, AFloodOfEventsDropsNoOtherUsersEvents) {
  int leave[2];
  ASSERT_EQ(pipe(leave), 0);
  const auto witness = Child::Fork([&] {
    close(leave[1]);
    Witness(scene_.socket(), leave[0]);
  });
  ASSERT_TRUE(witness->WaitForOutput("ready", absl::Seconds(30)));
  scene_.Attack([&] {
    close(leave[1]);
    BeRefused(scene_.socket(), Count(20, 200));
  });
  absl::SleepFor(absl::Seconds(2));
  close(leave[1]);
  witness->ExpectSuccess();
  ExpectUnharmed(scene_.Suffer("events"));
}

}  // namespace
}  // namespace sluice::testing
