// Thousands of random instructions, invariants after each. A failure prints
// the seed: run again with SLUICE_SEED.
#include <cstdlib>
#include <random>

#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

// What a handle may be given to, learnt from the grants alone: once a
// principal had it, nobody else ever does.
class Story {
 public:
  explicit Story(uint32_t seed) : random_(seed), node_(Config()) {
    node_.make_at_once = false;
  }

  void Step() {
    // Half-open ones (a refused Hello) are ended by core itself.
    std::erase_if(open_, [&](const auto& entry) {
      return node_.forgotten.contains(entry.first);
    });
    switch (Pick(16)) {
      case 0:
      case 1:
        return Attach();
      case 2:
      case 3:
      case 4:
        return Lease();
      case 5:
        return Free();
      case 6:
        return EndSocket();
      case 7:
        return EndProcess();
      case 8:
      case 9:
      case 10:
        return Make();
      case 11:
        return Administer();
      case 12:
      case 13:
        return Submit();
      case 14:
        return Solve();
      case 15:
        return TakePlan();
    }
  }

  void Finish() {
    node_.clock.Advance(absl::Minutes(1));
    node_.Apply(node_.core.Tick(node_.clock.Now()));
    while (!open_.empty()) {
      if (!node_.forgotten.contains(open_.begin()->first)) {
        node_.Die(open_.begin()->first);
      }
      open_.erase(open_.begin());
    }
    for (SessionId id : closed_) {
      node_.Apply(node_.core.ProcessGone(id, {}, node_.clock.Now()));
    }
    while (!node_.to_make.empty()) node_.MakeNext();
    for (PoolId pool : {Gpu(0), Gpu(1), Host(0)}) {
      EXPECT_EQ(node_.core.pool(pool).free, node_.core.pool(pool).total);
    }
    const Snapshot end = node_.core.TakeSnapshot(nullptr, node_.clock.Now());
    EXPECT_EQ(end.sessions, 0);
    EXPECT_TRUE(end.budgets.empty());
    EXPECT_TRUE(node_.slots.empty());
    // The device has exactly what the pools know of.
    EXPECT_EQ(node_.extents.size(), end.extents);
    EXPECT_GT(granted_, 50);
    EXPECT_TRUE(end.planning.empty());
  }

  int changes() const { return changes_; }

 private:
  static NodeConfig Config() {
    NodeConfig config = SmallNode();
    config.principal_limits = {.gpu = MiB(24), .host = MiB(24)};
    config.job_limits = {.gpu = MiB(14)};
    config.max_sessions = 24;
    return config;
  }
  int Pick(int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random_);
  }
  SessionId AnyOpen() {
    return std::next(open_.begin(), Pick(static_cast<int>(open_.size())))
        ->first;
  }

  void Attach() {
    const uint32_t uid = 1 + Pick(3);
    const SessionId id =
        Pick(3) ? node_.Attach(Pick(2) ? "z" : "w", 0, 1, uid, Pick(2))
                : node_.Attach(Pick(2) ? "x" : "y", Pick(2), 2, uid, Pick(2));
    if (node_.closed.contains(id)) return;
    open_[id] = uid;
  }
  void Lease() {
    if (open_.empty()) return;
    const SessionId id = AnyOpen();
    const PoolId pool = Pick(3) == 0 ? Host(0) : Gpu(Pick(2));
    node_.Lease(id, pool, (1 + Pick(128)) * KiB(64)).status().IgnoreError();
    NoteGrants();
  }
  void Free() {
    if (open_.empty()) return;
    const SessionId id = AnyOpen();
    const auto leases = node_.core.ledger().LeasesOf(id);
    if (leases.empty()) return;
    const LeaseId lease =
        *std::next(leases.begin(), Pick(static_cast<int>(leases.size())));
    node_.Ask(id, FreeRequest{lease});
  }
  void EndSocket() {
    if (open_.empty()) return;
    const SessionId id = AnyOpen();
    open_.erase(id);
    node_.Apply(node_.core.SocketEnded(id, node_.clock.Now()));
    if (!node_.forgotten.contains(id)) closed_.push_back(id);
  }
  void EndProcess() {
    std::erase_if(closed_,
                  [&](SessionId id) { return node_.forgotten.contains(id); });
    if (!closed_.empty() && Pick(2)) {
      const size_t i = Pick(static_cast<int>(closed_.size()));
      node_.Apply(node_.core.ProcessGone(closed_[i], {}, node_.clock.Now()));
      closed_.erase(closed_.begin() + static_cast<int64_t>(i));
    } else if (!open_.empty()) {
      const SessionId id = AnyOpen();
      open_.erase(id);
      node_.Apply(node_.core.ProcessGone(id, {Exit::Kind::kSignal, 9},
                                         node_.clock.Now()));
    }
  }
  void Make() {
    for (int n = Pick(6); n > 0 && !node_.to_make.empty(); --n) {
      node_.MakeNext(Pick(20) == 0 ? absl::ResourceExhaustedError("no memory")
                                   : absl::OkStatus());
    }
    NoteGrants();
  }
  void Administer() {
    const Bytes limit = MiB(4 + Pick(24));
    node_.core
        .SetBudget(Pick(2) ? BudgetTarget{.uid = 1 + Pick(3)}
                           : BudgetTarget{.job = "x"},
                   limit, std::nullopt, node_.clock.Now())
        .status()
        .IgnoreError();
    node_.core.CheckInvariants();
    node_.clock.Advance(absl::Milliseconds(Pick(2000)));
    node_.Apply(node_.core.Tick(node_.clock.Now()));
  }

  void Submit() {
    if (open_.empty()) return;
    const SessionId id = AnyOpen();
    const HelloRequest hello = node_.core.session(id)->hello;
    node_.Ask(id, ProfileRequest{});
    if (node_.to_read.empty()) return;
    const ReadProfile read = node_.to_read.back();
    node_.to_read.clear();
    auto profile = std::make_shared<plan::RankProfile>();
    profile->rank = hello.rank;
    profile->gpu = hello.gpu;
    profile->layers = 1;
    profile->settled = Pick(4) == 0;
    profile->classes = {{.name = "x", .bytes_per_layer = MiB(1)}};
    node_.Apply(node_.core.ProfileRead(
        read.session, read.request,
        ProfileWithHash{profile, std::to_string(Pick(3)), {}},
        node_.clock.Now()));
  }
  void Solve() {
    if (node_.to_solve.empty()) return;
    const SolvePlan question = node_.to_solve.front();
    node_.to_solve.erase(node_.to_solve.begin());
    absl::StatusOr<plan::NodePlan> answer = plan::NodePlan{};
    for (size_t i = 0; i < question.profiles.size(); ++i) {
      plan::RankPlan rank;
      rank.job = question.jobs[i];
      rank.rank = question.profiles[i]->rank;
      rank.host_bytes = KiB(64) * Pick(128);
      const double swap = Pick(5) / 4.0;
      rank.classes = {
          {.name = "x", .fractions = {0, swap, 1 - swap}, .why = {}}};
      answer->ranks.push_back(rank);
    }
    if (Pick(6) == 0) answer->infeasible = "too much";
    if (Pick(6) == 0) answer = absl::InternalError("it crashed");
    node_.Apply(
        node_.core.PlanSolved(question.round, answer, node_.clock.Now()));
  }
  void TakePlan() {
    for (const auto& [id, notice] : std::exchange(node_.notices, {})) {
      const auto* changed = std::get_if<PlanChangedNotice>(&notice);
      if (changed == nullptr || !open_.contains(id) || Pick(3) == 0) continue;
      node_.Ask(id, PlanTakenRequest{changed->plan, Pick(3) > 0, "so"});
      ++changes_;
    }
  }

  void NoteGrants() {
    for (const auto& [key, reply] : node_.replies) {
      const auto* granted = std::get_if<GrantedReply>(&reply);
      const auto session = open_.find(key.first);
      if (granted == nullptr || session == open_.end()) continue;
      for (const Slice& slice : granted->slices) {
        const auto [owner, is_new] =
            owner_.try_emplace(slice.id, session->second);
        ASSERT_EQ(owner->second, session->second) << "extent " << slice.id;
      }
      ++granted_;
    }
    node_.replies.clear();
  }

  std::mt19937 random_;
  CoreDriver node_;
  std::map<SessionId, uint32_t> open_;
  std::vector<SessionId> closed_;
  std::map<ExtentId, uint32_t> owner_;
  int granted_ = 0, changes_ = 0;
};

TEST(CoreRandom, InvariantsHoldAndNothingIsLost) {
  const char* given = std::getenv("SLUICE_SEED");
  int changes = 0;
  const uint32_t first = given ? std::atoi(given) : 1;
  for (uint32_t seed = first; seed < first + (given ? 1 : 10); ++seed) {
    SCOPED_TRACE(::testing::Message() << "SLUICE_SEED=" << seed);
    Story story(seed);
    for (int step = 0; step < 4000; ++step) story.Step();
    story.Finish();
    changes += story.changes();
    if (::testing::Test::HasFailure()) return;
  }
  if (!given) {
    EXPECT_GT(changes, 20);
  }
}

}  // namespace
}  // namespace sluice::daemon
