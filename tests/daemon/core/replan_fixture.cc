#include "tests/daemon/core/replan_fixture.h"

namespace sluice::daemon {

std::shared_ptr<plan::RankProfile> ProfileOf(int rank, uint64_t gpu) {
  auto profile = std::make_shared<plan::RankProfile>();
  profile->rank = Rank(rank);
  profile->gpu = DeviceIndex(gpu);
  profile->kinds[0].layers = 1;
  profile->kinds[0].forward_layer_seconds = 0.4;
  profile->kinds[0].backward_layer_seconds = 0.6;
  profile->classes = {
      {.name = "ffn_up", .bytes_per_layer = MiB(16), .recompute_seconds = 0.1}};
  return profile;
}

NodeConfig Replan::Node() {
  NodeConfig node = SmallNode();
  node.hosts = {{NumaIndex(0), MiB(40)}};
  return node;
}

void Replan::Submit(SessionId id, std::shared_ptr<plan::RankProfile> profile,
                    const std::string& hash) {
  node.Ask(id, ProfileRequest{});
  const ReadProfile read = node.to_read.back();
  node.to_read.pop_back();
  node.Apply(node.core.ProfileRead(read.session, read.request,
                                   ProfileWithHash{profile, hash, {}},
                                   node.clock.Now()));
}

SessionId Replan::Ask(const std::string& job, uint64_t gpu, uint32_t uid) {
  const SessionId id = node.Attach(job, 0, 1, uid, gpu);
  Submit(id, ProfileOf(0, gpu), job);
  return id;
}

plan::NodePlan Replan::PlanOf(const std::vector<Part>& parts) {
  plan::NodePlan plan;
  for (size_t i = 0; i < parts.size(); ++i) {
    plan::RankPlan rank;
    rank.job = static_cast<int64_t>(i);
    rank.rank = Rank(0);
    rank.alpha = parts[i].swap;
    rank.host_bytes = parts[i].host;
    rank.classes = {{.name = "ffn_up",
                     .fractions = {0, parts[i].swap, 1 - parts[i].swap},
                     .why = {}}};
    plan.ranks.push_back(std::move(rank));
  }
  return plan;
}

void Replan::Solve(const std::vector<Part>& parts) {
  ASSERT_FALSE(node.to_solve.empty());
  const SolvePlan question = node.to_solve.back();
  node.to_solve.pop_back();
  ASSERT_EQ(question.profiles.size(), parts.size());
  node.Apply(
      node.core.PlanSolved(question.round, PlanOf(parts), node.clock.Now()));
}

LeaseId Replan::LeaseHost(SessionId id, Bytes size) {
  const auto lease = node.Lease(id, Host(0), size);
  EXPECT_THAT(lease, sluice::testing::IsOk());
  return lease.ok() ? lease->lease : LeaseId();
}

size_t Replan::Ready(SessionId id) {
  return node.NoticesTo<PlanReadyNotice>(id).size();
}

std::vector<PlanId> Replan::Changes(SessionId id) {
  std::vector<PlanId> plans;
  for (const auto& notice : node.NoticesTo<PlanChangedNotice>(id)) {
    plans.push_back(notice.plan);
  }
  return plans;
}

std::vector<PlanningSnapshot> Replan::Planning(const Principal* viewer) {
  return node.core.TakeSnapshot(viewer, node.clock.Now()).planning;
}

std::optional<PlanningSnapshot> Replan::PlanningOf(const std::string& job) {
  for (const PlanningSnapshot& each : Planning()) {
    if (each.job == job) return each;
  }
  return std::nullopt;
}

uint64_t Replan::Count(ChangeOutcome what) {
  return node.core.TakeSnapshot(nullptr, node.clock.Now())
      .stats->plan_changes[what];
}

void Replan::Wait(absl::Duration time) {
  node.clock.Advance(time);
  node.Apply(node.core.Tick(node.clock.Now()));
}

void Replan::JoinThatWaits() {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  held = LeaseHost(a, MiB(32));
  b = Ask("b", 1);
  Solve({{0.5, MiB(16)}, {0.5, MiB(16)}});
}

void Replan::TakeChange(SessionId id, LeaseId* lease, Bytes size) {
  Free(id, *lease);
  *lease = LeaseHost(id, size);
  node.Ask(id, PlanTakenRequest{Changes(id).back(), true, "alpha changed"});
}

}  // namespace sluice::daemon
