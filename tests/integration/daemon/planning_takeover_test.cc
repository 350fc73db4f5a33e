// Tests that users with the largest allowed profiles do no harm to others when
// the daemon dies.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/codec.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/integration/daemon/kept_daemon.h"
#include "tests/support/sanitizer.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns a profile of classes with the longest names and with reasons of `why`
// bytes. The fractions are given, so that there is nothing to solve.
plan::RankProfile ProfileOf(size_t classes, size_t why) {
  plan::RankProfile profile;
  profile.kinds[0].name = std::string(plan::kMaxNameBytes, 'k');
  profile.kinds[0].layers = 1;
  profile.kinds[0].forward_layer_seconds = 0.1;
  profile.kinds[0].backward_layer_seconds = 0.2;
  for (size_t i = 0; i < classes; ++i) {
    profile.classes.push_back({.name = fmt::format("{:0>256}", i),
                               .kind = profile.kinds[0].name,
                               .bytes_per_layer = Bytes(64),
                               .recompute_seconds = 1e-6,
                               .given = {.keep = 0, .swap = 1},
                               .why = std::string(why, 'w')});
  }
  return profile;
}

class PlanningTakeOver : public ::testing::Test {
 protected:
  PlanningTakeOver() {
    SLUICE_CHECK(chmod(daemon_.File("").c_str(), 0755) == 0);
    daemon_.Start();
  }
  // Attaches as user `user` if this process is root, else as its own user.
  RawClient Attached(const std::string& job, uid_t user) {
    const bool root = geteuid() == 0;
    if (root) SLUICE_CHECK(seteuid(user) == 0);
    auto client = RawClient::Connect(daemon_.socket());
    if (root) SLUICE_CHECK(seteuid(0) == 0);
    SLUICE_CHECK_OK(client.status());
    EXPECT_THAT(client->Hello(job), IsOk());
    return *std::move(client);
  }
  static absl::Status Submit(RawClient& client,
                             const plan::RankProfile& profile) {
    SLUICE_ASSIGN_OR_RETURN(const UniqueFd fd,
                            wire::ToMemfd("profile", plan::Encode(profile)));
    wire::Request request;
    request.mutable_submit_profile();
    return client.Call(request, {fd.get()}).status();
  }
  static void ExpectPlan(RawClient& client) {
    const auto event = client.NextEvent(absl::Seconds(60));
    ASSERT_THAT(event, IsOk());
    EXPECT_TRUE(event->has_plan_ready()) << event->body_case();
  }
  KeptDaemon daemon_;
};

// Guards against a state that is full, so that no session is taken over.
TEST_F(PlanningTakeOver, LargeProfilesDoNotEndOtherUsersSessions) {
  if (kThreadSanitizer) {
    GTEST_SKIP() << "it takes over a minute and tests no threads";
  }
  RawClient honest = Attached("honest", 0);
  ASSERT_THAT(Submit(honest, ProfileOf(8, 10)), IsOk());
  ExpectPlan(honest);
  std::vector<RawClient> large;
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  for (uid_t user = 1001; user < 1003; ++user) {
    large.push_back(Attached(fmt::format("job{}", user), user));
    ASSERT_THAT(Submit(large.back(), ProfileOf(plan::kMaxClasses, 1024)),
                IsOk());
    ExpectPlan(large.back());
    // A user may have only one profile of this size.
    RawClient more = Attached("more", user);
    EXPECT_THAT(
        Submit(more, ProfileOf(plan::kMaxClasses, 1024)),
        StatusIs(kExhausted,
                 HasSubstr("and the limit is 16777216: submit a profile "
                           "of fewer classes")));
    if (geteuid() != 0) break;
  }
  if (large.size() > 1) {
    RawClient third = Attached("third", 1003);
    EXPECT_THAT(Submit(third, ProfileOf(plan::kMaxClasses, 1024)),
                StatusIs(kExhausted, HasSubstr("33554432")));
    EXPECT_THAT(Submit(third, ProfileOf(8, 10)), IsOk());
  }
  EXPECT_THAT(HttpGet(daemon_.File("http.sock"), "/metrics"),
              HasSubstr(fmt::format("sluice_quota_refusals_total{{of=\"kept_"
                                    "profile_bytes\"}} {}\n",
                                    large.size() > 1 ? 3 : 1)));
  EXPECT_THAT(daemon_.Log(), Not(HasSubstr("is not saved")));
  daemon_.KillAndStart();
  const auto event = honest.NextEvent(absl::Seconds(20));
  ASSERT_THAT(event, IsOk());
  ASSERT_TRUE(event->has_taken_over());
  EXPECT_NE(event->taken_over().plan_id(), 0u);
  EXPECT_THAT(honest.Lease(wire::Lease::GPU, KiB(64)), IsOk());
  // The large plans were saved, too.
  for (RawClient& each : large) {
    const auto told = each.NextEvent(absl::Seconds(20));
    ASSERT_THAT(told, IsOk());
    ASSERT_TRUE(told->has_taken_over());
    EXPECT_NE(told->taken_over().plan_id(), 0u);
    EXPECT_THAT(each.Lease(wire::Lease::GPU, KiB(64)), IsOk());
  }
}

}  // namespace
}  // namespace sluice::testing
