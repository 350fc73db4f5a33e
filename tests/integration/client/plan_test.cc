// Tests a plan's whole path: from a rank to the daemon and its worker process,
// and back to all ranks.
#include "client/session/session.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::RunningDaemon;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

// Returns a profile of two segments and of one class, which may be swapped.
plan::RankProfile ProfileOf(Rank rank) {
  plan::RankProfile profile;
  profile.rank = rank;
  profile.gpu = DeviceIndex(rank.value());
  profile.kinds[0].layers = 2;
  for (const char* name : {"qkv.forward.full", "loss.full"}) {
    plan::SegmentKind segment;
    segment.name = name;
    segment.trace = {.buffers = {{0, 0, 2, KiB(64)}, {1, 1, 3, KiB(32)}},
                     .end = 3};
    segment.seconds = 0.001;
    segment.executions = 4;
    profile.segments.push_back(segment);
  }
  profile.classes = {
      {.name = "ffn_up", .bytes_per_layer = MiB(1), .recompute_seconds = 0.01}};
  profile.kinds[0].forward_layer_seconds = 0.1;
  profile.kinds[0].backward_layer_seconds = 0.2;
  profile.transient_capacity = MiB(4);
  return profile;
}

SessionOptions PlanningRank(const RunningDaemon& daemon, uint64_t rank) {
  return {.socket = daemon.socket(),
          .job = "planned",
          .rank = Rank(rank),
          .world_size = 2,
          .local_ranks = 2,
          .gpu = DeviceIndex(rank)};
}

TEST(PlanIntegration, AllLocalRanksGetTheSamePlan) {
  RunningDaemon daemon;
  const auto other = Child::Fork([&] {
    const auto session = Session::Open(PlanningRank(daemon, 1));
    ASSERT_THAT(session, IsOk());
    const auto plan = (*session)->Plan(ProfileOf(Rank(1)), absl::Seconds(30));
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->ranks.size(), 2u);
    std::printf("plan %d\n", static_cast<int>(plan->id.value()));
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto session,
                              Session::Open(PlanningRank(daemon, 0)));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const plan::NodePlan plan,
      session->Plan(ProfileOf(Rank(0)), absl::Seconds(30)));
  EXPECT_EQ(plan.infeasible, "");
  ASSERT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.ranks[0].segments.size(), 2u);
  EXPECT_EQ(plan.ranks[0].alpha, 1) << "the link has room for all of it";
  other->ExpectSuccess();
  EXPECT_EQ(other->output(), "plan " + std::to_string(plan.id.value()) + "\n");

  const std::string id = std::to_string(plan.id.value());
  SLUICE_ASSERT_OK_AND_ASSIGN(const NodeStatus status,
                              QueryNode(daemon.socket(), id));
  ASSERT_TRUE(status.plan.has_value());
  EXPECT_EQ(status.plan->profile_hash, plan.profile_hash);
  EXPECT_THAT(QueryNode(daemon.socket(), "4711"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("4711")));
}

}  // namespace
}  // namespace sluice::client
