// Which profiles and plans are saved if there is no room for all.
#include "daemon/state/planning_share.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/state/core_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/codec.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/sanitizer.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobKey Job(uint32_t uid, const std::string& name) { return {{uid, ""}, name}; }

TEST(PlanningShareTest, TheLargestJobOfTheUserWhoHasMostIsLeftOut) {
  PlanningShare share(100);
  share.Set(Job(1, "a"), RowKind::kMember, 30);
  share.Set(Job(2, "b"), RowKind::kMember, 40);
  share.Set(Job(1, "c"), RowKind::kMember, 10);
  share.Set(Job(1, "c"), RowKind::kPlanInUse, 15);
  EXPECT_THAT(share.TakeEvicted(), IsEmpty());
  share.Set(Job(3, "d"), RowKind::kMember, 6);
  EXPECT_THAT(share.TakeEvicted(), ElementsAre(Job(1, "a")));
  EXPECT_FALSE(share.IsSaved(Job(1, "a")));
  EXPECT_TRUE(share.IsSaved(Job(1, "c")));
  EXPECT_THAT(share.TakeNews(), ElementsAre(LeftOut{Job(1, "a"), 30}));
  EXPECT_THAT(share.TakeNews(), IsEmpty());
  // What is left out takes no room.
  share.Set(Job(4, "e"), RowKind::kMember, 29);
  EXPECT_THAT(share.TakeEvicted(), IsEmpty());
}

TEST(PlanningShareTest, WhatIsTooLargeAloneCostsNobodyElse) {
  PlanningShare share(100);
  share.Set(Job(1, "small"), RowKind::kMember, 60);
  share.Set(Job(2, "large"), RowKind::kMember, 1000);
  share.Set(Job(2, "large"), RowKind::kPlanInUse, 1000);
  EXPECT_THAT(share.TakeEvicted(), ElementsAre(Job(2, "large")));
  EXPECT_TRUE(share.IsSaved(Job(1, "small")));
}

TEST(PlanningShareTest, AJobThatEndsLeavesItsRoomAndMayComeAgain) {
  PlanningShare share(100);
  share.Set(Job(1, "a"), RowKind::kMember, 101);
  EXPECT_FALSE(share.IsSaved(Job(1, "a")));
  share.Set(Job(1, "a"), RowKind::kMember, 0);
  share.TakeNews();
  share.Set(Job(1, "a"), RowKind::kMember, 90);
  EXPECT_TRUE(share.IsSaved(Job(1, "a")));
  share.Set(Job(1, "a"), RowKind::kMember, 0);
  share.Set(Job(2, "b"), RowKind::kMember, 100);
  EXPECT_TRUE(share.IsSaved(Job(2, "b")));
}

// All that is said of it at any moment adds up, as it does all said at once.
TEST(PlanningShareTest, WhatIsSavedAlwaysFits) {
  std::mt19937 random(1);
  PlanningShare share(1000);
  std::map<JobKey, std::map<RowKind, size_t>> rows;
  for (int i = 0; i < 20000; ++i) {
    const JobKey job = Job(random() % 5, fmt::format("{}", random() % 6));
    const RowKind kind = PlanningShare::kKinds.at(random() % 3);
    const size_t bytes = random() % 3 == 0 ? 0 : random() % 300;
    share.Set(job, kind, rows[job][kind] = bytes);
    if (random() % 100 == 0) {
      share.Clear();
      for (const auto& [each, kinds] : rows) {
        for (const auto& [of, size] : kinds) share.Set(each, of, size);
      }
    }
    size_t saved = 0;
    for (const auto& [each, kinds] : rows) {
      if (!share.IsSaved(each)) continue;
      for (const auto& [of, size] : kinds) saved += size;
    }
    ASSERT_LE(saved, 1000u);
  }
}

// As large as one may be (proto/plan/codec.h), but for its traces.
std::shared_ptr<plan::RankProfile> LargeProfile(size_t classes) {
  auto profile = std::make_shared<plan::RankProfile>();
  profile->kinds[0].name = std::string(plan::kMaxNameBytes, 'k');
  profile->kinds[0].layers = 1;
  for (size_t i = 0; i < classes; ++i) {
    profile->classes.push_back({.name = fmt::format("{:0>256}", i),
                                .kind = profile->kinds[0].name,
                                .bytes_per_layer = KiB(1),
                                .why = std::string(1024, 'w')});
  }
  return profile;
}

// Jobs that run by plans as long as their profiles.
class Planned : public ::testing::Test {
 protected:
  SessionId Run(const std::string& job, uint32_t uid, size_t classes) {
    const SessionId id = node_.Attach(job, 0, 1, uid);
    node_.Ask(id, ProfileRequest{});
    const ReadProfile read = node_.to_read.back();
    node_.Run([&](Core& core) {
      return core.ProfileRead(read.session, read.request,
                              ProfileWithHash{LargeProfile(classes), job, {}},
                              node_.clock.Now());
    });
    const SolvePlan question = node_.to_solve.back();
    plan::NodePlan answer;
    for (size_t i = 0; i < question.profiles.size(); ++i) {
      plan::RankPlan rank;
      rank.job = question.jobs[i];
      for (const auto& each : question.profiles[i]->classes) {
        rank.classes.push_back({each.name, {0, 1, 0}, each.why, each.kind});
      }
      answer.ranks.push_back(std::move(rank));
    }
    node_.Run([&](Core& core) {
      return core.PlanSolved(question.round, answer, node_.clock.Now());
    });
    EXPECT_EQ(node_.NoticesTo<PlanReadyNotice>(id).size(), 1u);
    return id;
  }
  CoreState Read() const {
    Core fresh(node_.core.config(), absl::UnixEpoch());
    auto read = ReadCore(contents_, fresh.Save());
    SLUICE_CHECK_OK(read.status());
    return *std::move(read);
  }
  static bool Knows(const CoreState& state, const JobKey& job) {
    EXPECT_EQ(state.joint.members.contains(job),
              state.joint.rounds.current.contains(job));
    return state.joint.members.contains(job);
  }

  CoreDriver node_;
  CoreRows rows_;
  StateFile::Contents contents_;
};

constexpr uint32_t kLarge = testing::kSanitized ? 5 : 10;

// Guards against a checkpoint that four of these fill.
TEST_F(Planned, TheLargestProfilesLeaveRoomForAllElse) {
  contents_.checkpoint = rows_.Everything(node_.core);
  Run("honest", 1, 8);
  contents_.records.push_back(rows_.Changes(node_.core));
  const size_t before = rows_.Everything(node_.core).size();
  for (uint32_t uid = 2; uid < 2 + kLarge; ++uid) {
    Run("large", uid, plan::kMaxClasses);
    contents_.records.push_back(rows_.Changes(node_.core));
  }
  EXPECT_TRUE(Knows(Read(), {{1, "/a"}, "honest"}));
  EXPECT_EQ(rows_.TakeLeftOut().size(), kLarge);
  const std::string all = rows_.Everything(node_.core);
  EXPECT_LT(all.size(), before + CoreRows::kMostPlanning.size());
  contents_ = {all, {}};
  const CoreState read = Read();
  EXPECT_TRUE(Knows(read, {{1, "/a"}, "honest"}));
  EXPECT_FALSE(Knows(read, {{2, "/a"}, "large"}));
  EXPECT_EQ(read.sessions.size(), 1 + kLarge);
  EXPECT_THAT(rows_.TakeLeftOut(), IsEmpty());  // they were told
}

TEST_F(Planned, WhoWasSavedIsErasedForWhoHasLess) {
  contents_.checkpoint = rows_.Everything(node_.core);
  Run("first", 1, 600);
  contents_.records.push_back(rows_.Changes(node_.core));
  EXPECT_TRUE(Knows(Read(), {{1, "/a"}, "first"}));
  Run("second", 2, 500);
  contents_.records.push_back(rows_.Changes(node_.core));
  EXPECT_FALSE(Knows(Read(), {{1, "/a"}, "first"}));
  EXPECT_TRUE(Knows(Read(), {{2, "/a"}, "second"}));
}

TEST_F(Planned, WhatIsLeftOutIsSavedByACheckpointThatHasRoom) {
  const SessionId first = Run("first", 1, 600);
  Run("second", 2, 550);
  contents_.checkpoint = rows_.Everything(node_.core);
  EXPECT_FALSE(Knows(Read(), {{1, "/a"}, "first"}));
  EXPECT_TRUE(Knows(Read(), {{2, "/a"}, "second"}));
  node_.Die(first);
  Run("third", 1, 100);
  contents_.checkpoint = rows_.Everything(node_.core);
  EXPECT_TRUE(Knows(Read(), {{2, "/a"}, "second"}));
  EXPECT_TRUE(Knows(Read(), {{1, "/a"}, "third"}));
}

}  // namespace
}  // namespace sluice::daemon
