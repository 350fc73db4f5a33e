// Tests that a drained node grants nothing new, and that all settings of
// administrators form one policy.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

TEST(Drain, NewLeasesAreRefusedAndExistingOnesStay) {
  CoreDriver node;
  const SessionId rank = node.Attach("a", 0);
  const auto lease = node.Lease(rank, Gpu(0), MiB(4));
  ASSERT_THAT(lease.status(), IsOk());
  ASSERT_THAT(node.Change(DrainChange{Drain{"root (alice)", "new driver", {}}}),
              IsOk());
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("the node is drained by root (alice) (new driver): "
                         "nothing new is granted until an administrator runs "
                         "sluicectl undrain"));
  EXPECT_THAT(node.Lease(rank, Host(0), MiB(4)).status(), refused);
  const auto hello = node.Ask(node.Connect(2), HelloRequest{.job = "b"});
  EXPECT_THAT(std::get<absl::Status>(*hello), refused);
  const auto watching =
      node.Ask(node.Connect(2), HelloRequest{.observer = true});
  EXPECT_TRUE(std::holds_alternative<WelcomeReply>(*watching));
  EXPECT_TRUE(
      std::holds_alternative<NotedReply>(*node.Ask(rank, StepReport{})));
  const Snapshot drained = node.core.TakeSnapshot(nullptr, node.clock.Now());
  EXPECT_EQ(drained.drain->reason, "new driver");
  EXPECT_EQ(drained.stats->leases_refused[RefusedBy::kDrain], 1u);
  // Guards against an enum value without a name.
  EXPECT_EQ(Name(RefusedBy::kDrain), "drain");
  EXPECT_EQ(Name(RefusedBy::kPool), "pool");
  EXPECT_TRUE(std::holds_alternative<FreedReply>(
      *node.Ask(rank, FreeRequest{lease->lease})));
  EXPECT_THAT(node.Change(DrainChange{}), IsOk());
  EXPECT_THAT(node.Change(DrainChange{}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(node.Lease(rank, Host(0), MiB(4)).status(), IsOk());
  EXPECT_EQ(node.core.sessions().ranks(), 1);
}

TEST(Policy, ThePolicyHasLiveSettingsAndTheNextDaemonAppliesThem) {
  NodeConfig config = SmallNode();
  config.named_job_limits["night"] = {.gpu = MiB(8)};
  config.named_job_limits["day"] = {.gpu = MiB(8)};
  CoreDriver node(config);
  EXPECT_EQ(node.core.live_policy().policy(), Policy());
  const absl::Time now = node.clock.Now();
  ASSERT_THAT(node.Change(BudgetChange{{.job = "night"}, MiB(4), {}, "alice"}),
              IsOk());
  ASSERT_THAT(node.Change(BudgetChange{{.uid = 7}, {}, MiB(2), ""}), IsOk());
  const auto tried = node.core.live_policy().With(
      BudgetChange{{.uid = 8}, MiB(1), {}, ""}, now);
  ASSERT_THAT(tried.status(), IsOk());
  EXPECT_EQ(tried->limits.uids.size(), 2u);
  const Policy kept = node.core.live_policy().policy();
  EXPECT_EQ(kept.limits.uids.size(), 1u) << "With() changed the policy";
  EXPECT_EQ(kept.limits.named_jobs.size(), 1u)
      << "limits of the configuration are no part of a policy";

  CoreDriver next(config);
  ASSERT_THAT(next.core.SetPolicy(kept, now), IsOk());
  EXPECT_EQ(next.core.live_policy().policy(), kept);
  const auto left = [&](const std::string& job, uint32_t uid) {
    const SessionId rank = next.Attach(job, 0, 1, uid);
    return next.Lease(rank, Gpu(0), MiB(8)).status();
  };
  EXPECT_THAT(left("day", 1), IsOk());
  EXPECT_THAT(left("night", 1), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("its limit of 4 MiB")));
}

TEST(Policy, ALimitBelowMemoryInUseIsRefused) {
  CoreDriver node;
  ASSERT_THAT(node.Lease(node.Attach("a", 0), Gpu(0), MiB(4)).status(), IsOk());
  EXPECT_THAT(node.Change(BudgetChange{{.job = "a"}, MiB(2), {}, ""}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("already uses 4 MiB")));
}

}  // namespace
}  // namespace sluice::daemon
