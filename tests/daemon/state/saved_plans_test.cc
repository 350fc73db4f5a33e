// Tests that profiles and plans are saved whole, or refused before they are
// kept.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "daemon/state/core_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/codec.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

// Returns a profile with texts of the greatest length (proto/plan/codec.h),
// without traces.
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

// A job's plan has the names and reasons of all classes of its profile.
class Planned : public ::testing::Test {
 protected:
  absl::Status Submit(SessionId id, size_t classes) {
    node_.Ask(id, ProfileRequest{});
    const ReadProfile read = node_.to_read.back();
    const std::string hash = fmt::format("{} {}", id.value(), classes);
    node_.Run([&](Core& core) {
      return core.ProfileRead(read.session, read.request,
                              ProfileWithHash{LargeProfile(classes), hash, {}},
                              node_.clock.Now());
    });
    const Reply reply = node_.replies.at({id, read.request});
    const auto* refused = std::get_if<absl::Status>(&reply);
    return refused != nullptr ? *refused : absl::OkStatus();
  }
  void AskAgain(const JobKey& job, size_t classes) {
    for (const auto& [id, session] : node_.core.Save().sessions) {
      if (session.job() != job) continue;
      EXPECT_THAT(Submit(id, classes), IsOk());
    }
  }
  size_t Counted() const {
    size_t all = 0;
    for (const auto& [who, size] : node_.core.planning().KeptProfiles()) {
      all += size.size();
    }
    return all;
  }
  SessionId Run(const std::string& job, uint32_t uid, size_t classes) {
    const SessionId id = node_.Attach(job, 0, 1, uid);
    EXPECT_THAT(Submit(id, classes), IsOk());
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

TEST_F(Planned, TheLargestProfileTakesNoMoreBytesThanAreCounted) {
  const size_t before = rows_.Everything(node_.core).size();
  Run("largest", 1, plan::kMaxClasses);
  const JobKey job{{1, "/a"}, "largest"};
  for (int times = 0; times < 2; ++times) {
    contents_.checkpoint = rows_.Everything(node_.core);
    EXPECT_TRUE(Knows(Read(), job));
    EXPECT_GT(contents_.checkpoint.size(), 3'500'000);
    EXPECT_LT(contents_.checkpoint.size() - before, Counted());
    AskAgain(job, plan::kMaxClasses);
  }
}

TEST_F(Planned, AProfileTooLargeToSaveIsRefusedWithTheLimit) {
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  Run("first", 1, plan::kMaxClasses);
  EXPECT_THAT(Submit(node_.Attach("second", 0, 1, 1), plan::kMaxClasses),
              StatusIs(kExhausted, HasSubstr("the limit is 16777216")));
  Run("first", 2, plan::kMaxClasses);
  EXPECT_THAT(Submit(node_.Attach("third", 0, 1, 3), plan::kMaxClasses),
              StatusIs(kExhausted, HasSubstr("33554432")));
  Run("small", 3, 8);
  contents_.checkpoint = rows_.Everything(node_.core);
  EXPECT_LT(contents_.checkpoint.size(), ProfileLimit().all.size());
  for (uint32_t uid = 1; uid < 4; ++uid) {
    EXPECT_TRUE(Knows(Read(), {{uid, "/a"}, uid < 3 ? "first" : "small"}));
  }
}

// Guards against a saved plan that no limit counts.
TEST_F(Planned, AJobsPlanStillCountsAfterASmallerProfile) {
  Run("job", 1, 600);
  const size_t used = rows_.Everything(node_.core).size();
  AskAgain({{1, "/a"}, "job"}, 8);
  EXPECT_GT(Counted(), used / 3);
}

}  // namespace
}  // namespace sluice::daemon
