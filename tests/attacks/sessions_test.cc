// Another user attacks with many sessions, rank slots and connections, floods,
// unread replies and noise. See scene.h.
#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/scene.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class Attacks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0)
      GTEST_SKIP() << "only root can start processes of other users";
  }
};

// Guards against observers and HTTP connections that use up all descriptors. An
// honest rank's profile then ends the rank's session.
TEST(FewDescriptors, DaemonRefusesSessionsBeforeDescriptorsRunOut) {
  RunningDaemon daemon("", {.open_files = 128});
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient honest,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(honest.Hello("honest"), IsOk());
  std::vector<RawClient> observers;
  absl::Status refused;
  while (refused.ok() && observers.size() < 100) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient observer,
                                RawClient::Connect(daemon.socket()));
    refused = SayHello(observer, "", /*rank=*/false);
    observers.push_back(std::move(observer));
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("sessions, and the limit is 8: ")));
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd profile,
                              wire::ToMemfd("profile", "no profile"));
  wire::Request submit;
  submit.mutable_submit_profile();
  EXPECT_FALSE(
      absl::IsUnavailable(honest.Call(submit, {profile.get()}).status()));
  EXPECT_THAT(honest.Lease(wire::Lease::GPU, MiB(4)), IsOk());
}

// Guards against one user that takes all 2,048 sessions.
TEST_F(Attacks, OneUserCannotTakeAllSessions) {
  Scene scene;
  scene.Attack([&] { TakeSessions(scene.socket(), 2100, /*ranks=*/false); });
  ExpectUnharmed(scene.Suffer("sessions"));
}

// Guards against one user that takes all 256 rank slots.
TEST_F(Attacks, OneUserCannotTakeAllRankSlots) {
  Scene scene;
  scene.Attack([&] { TakeSessions(scene.socket(), 300, /*ranks=*/true); });
  ExpectUnharmed(scene.Suffer("rank slots"));
}

TEST_F(Attacks, HalfOpenConnectionsHarmNoOtherUser) {
  Scene scene;
  scene.Attack([&] { StayHalfOpen(scene.socket(), Count(300, 2000)); });
  ExpectUnharmed(scene.Suffer("half-open"));
}

// Guards against serving connections in turn instead of users, which delayed an
// honest request by 13 s.
TEST_F(Attacks, FloodsOfQueriesHarmNoOtherUser) {
  Scene scene;
  scene.Attack([&] { AskForEverything(scene.socket(), Count(40, 200)); });
  ExpectUnharmed(scene.Suffer("queries"));
}

TEST_F(Attacks, FloodsOfRefusedLeasesHarmNoOtherUser) {
  Scene scene;
  scene.Attack([&] { BeRefused(scene.socket(), Count(20, 200)); });
  ExpectUnharmed(scene.Suffer("refusals"));
}

// Guards against refusals that examine each idle extent, which took 8 ms at
// 7,000 extents. The first size exceeds the pool, the second only the budget.
// The third would require too many extents to be made and destroyed.
TEST_F(Attacks, RefusedLeasesBesideIdleExtentsHarmNoOtherUser) {
  const int kept = Count(1000, 10'000);
  Scene scene(
      fmt::format("[sim]\ngpu_memory = \"1GiB\"\n"
                  "[budgets]\nprincipal_gpu_bytes = \"1000MiB\"\n"
                  "[quota]\nextents = {}\n",
                  kept));
  scene.Attack([&] {
    BeRefusedBesideKept(scene.socket(), kept, Count(20, 200),
                        {MiB(1 << 20), MiB(1016), MiB(1000)});
  });
  ExpectUnharmed(scene.Suffer("refusals while extents are kept"));
}

TEST_F(Attacks, UnreadRepliesHarmNoOtherUser) {
  Scene scene;
  scene.Attack([&] { NeverRead(scene.socket(), 25, Count(60, 2000)); });
  ExpectUnharmed(scene.Suffer("unread replies"));
}

TEST_F(Attacks, NoiseHarmsNoOtherUser) {
  Scene scene;
  scene.Attack([&] { SendNoise(scene.socket()); });
  ExpectUnharmed(scene.Suffer("noise"));
}

}  // namespace
}  // namespace sluice::testing
