// Tests plans that a session requests, and changed plans that it does not.
#include <atomic>
#include <future>

#include "proto/base/peer_fault.h"
#include "proto/plan/codec.h"
#include "tests/client/session_fixture.h"

namespace sluice::client {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

class PlanTest : public SessionTest {
 protected:
  static plan::RankProfile Profile() {
    plan::RankProfile profile;
    profile.kinds[0].layers = 1;
    return profile;
  }
  static plan::NodePlan EmptyPlan() {
    plan::NodePlan plan;
    plan.id = PlanId(3);
    plan.profile_hash = plan::HashProfiles({Profile()});
    plan.ranks.resize(1);
    plan.ranks[0].alpha_limited_by = "none";
    return plan;
  }
  // Returns the status of a Plan call that the daemon answers with `event`.
  absl::Status WhyNoPlan(const wire::Event& event) {
    daemon_.SetScript([this, event](const wire::Message& m) {
      if (m.packet.request().has_submit_profile()) daemon_.SendEvent(event);
      return false;
    });
    return session_->Plan(Profile(), absl::Seconds(20)).status();
  }
  // Answers the profile with `plan`: first the event, then the reply.
  void AnswerWith(const plan::NodePlan& plan) {
    daemon_.SetScript([this, plan](const wire::Message& m) {
      if (!m.packet.request().has_submit_profile()) return false;
      wire::Event event;
      event.mutable_plan_ready()->set_plan_id(plan.id.value());
      const auto memfd = *wire::ToMemfd("plan", plan::Encode(plan));
      daemon_.SendEvent(event, {memfd.get()});
      return false;
    });
  }
};

TEST_F(PlanTest, ThePlanComesAsAnEvent) {
  Open();
  AnswerWith(EmptyPlan());
  SLUICE_ASSERT_OK_AND_ASSIGN(const plan::NodePlan got,
                              session_->Plan(Profile(), absl::Seconds(20)));
  EXPECT_EQ(got.id, PlanId(3));
}

// A daemon dies after it read the profile, and another daemon takes over.
class TakenOverTest : public PlanTest {
 protected:
  // Sends the event of a takeover. `plan` is the plan that the dead daemon
  // announced, or null.
  void TakeOver(const plan::NodePlan* plan) {
    wire::Event event;
    std::vector<int> fds;
    UniqueFd memfd;
    if (plan != nullptr) {
      event.mutable_taken_over()->set_plan_id(plan->id.value());
      memfd = *wire::ToMemfd("plan", plan::Encode(*plan));
      fds.push_back(memfd.get());
    } else {
      event.mutable_taken_over();
    }
    daemon_.TakeOver();
    daemon_.SendEvent(event, fds);
  }
  std::future<absl::StatusOr<plan::NodePlan>> Ask() {
    return std::async(std::launch::async, [this] {
      return session_->Plan(Profile(), absl::Seconds(20));
    });
  }
  bool Submitted(int times) {
    return Soon(
        [&] { return daemon_.count(wire::Request::kSubmitProfile) >= times; });
  }
};

TEST_F(TakenOverTest, AProfileThatTheNextDaemonLacksIsSubmittedAgain) {
  Open();
  auto plan = Ask();
  ASSERT_TRUE(Submitted(1));
  // The reply to this lease follows the reply to the profile.
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  AnswerWith(EmptyPlan());
  TakeOver(nullptr);
  const auto got = plan.get();
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->id, PlanId(3));
  EXPECT_EQ(daemon_.count(wire::Request::kSubmitProfile), 2);
}

TEST_F(TakenOverTest, AnAnnouncedPlanArrivesWithTheTakeover) {
  Open();
  auto plan = Ask();
  ASSERT_TRUE(Submitted(1));
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  const plan::NodePlan made = EmptyPlan();
  TakeOver(&made);
  const auto got = plan.get();
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->id, PlanId(3));
  EXPECT_EQ(daemon_.count(wire::Request::kSubmitProfile), 1);
}

// The dead daemon's plan answers an earlier profile, so the client submits this
// profile again.
TEST_F(TakenOverTest, AnEarlierPlanDoesNotAnswerALaterProfile) {
  Open();
  std::atomic<int> asked = 0;
  plan::NodePlan old = EmptyPlan();
  old.id = PlanId(2);
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_submit_profile()) return false;
    if (asked++ == 0) return true;  // the daemon dies before it answers
    wire::Event event;
    event.mutable_plan_ready()->set_plan_id(3);
    const auto memfd = *wire::ToMemfd("plan", plan::Encode(EmptyPlan()));
    daemon_.SendEvent(event, {memfd.get()});
    return false;
  });
  auto plan = Ask();
  ASSERT_TRUE(Soon([&] { return asked == 1; }));
  TakeOver(&old);
  const auto got = plan.get();
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->id, PlanId(3));
  EXPECT_EQ(asked, 2);
}

// Tests the client's answer to a changed plan that the rank did not request.
class ChangeTest : public PlanTest {
 protected:
  wire::PlanTaken AnswerTo(const std::string& bytes) {
    std::promise<wire::PlanTaken> answer;
    daemon_.SetScript([&](const wire::Message& m) {
      if (!m.packet.request().has_plan_taken()) return false;
      answer.set_value(m.packet.request().plan_taken());
      return true;
    });
    wire::Event event;
    event.mutable_plan_changed()->set_plan_id(9);
    const auto memfd = *wire::ToMemfd("plan", bytes);
    daemon_.SendEvent(event, {memfd.get()});
    auto told = answer.get_future();
    const bool came =
        told.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    daemon_.SetScript(nullptr);
    return came ? told.get() : wire::PlanTaken();
  }
};

TEST_F(ChangeTest, AChangedPlanThatCannotBeReadIsAnsweredNotTaken) {
  Open();
  const wire::PlanTaken answer = AnswerTo("no plan");
  EXPECT_EQ(answer.plan_id(), 9u);
  EXPECT_FALSE(answer.taken());
  EXPECT_THAT(answer.note(), HasSubstr("cannot be read"));
  EXPECT_EQ(session_->ChangedPlan(), nullptr);
}

TEST_F(ChangeTest, ASessionThatTakesNoChangesRefusesAChange) {
  SessionOptions options = daemon_.options();
  options.takes_changes = false;
  SLUICE_ASSERT_OK_AND_ASSIGN(session_, Session::Open(options));
  plan::NodePlan plan = EmptyPlan();
  plan.id = PlanId(9);
  const wire::PlanTaken answer = AnswerTo(plan::Encode(plan));
  EXPECT_EQ(answer.plan_id(), 9u);
  EXPECT_FALSE(answer.taken());
  EXPECT_EQ(session_->ChangedPlan(), nullptr);
}

TEST_F(ChangeTest, AChangedPlanStaysUntilItIsAnswered) {
  Open();
  plan::NodePlan plan = EmptyPlan();
  plan.id = PlanId(9);
  wire::Event event;
  event.mutable_plan_changed()->set_plan_id(9);
  const auto memfd = *wire::ToMemfd("plan", plan::Encode(plan));
  daemon_.SendEvent(event, {memfd.get()});
  ASSERT_TRUE(Soon([&] { return session_->ChangedPlan() != nullptr; }));
  EXPECT_EQ(daemon_.count(wire::Request::kPlanTaken), 0);
  EXPECT_THAT(session_->AnswerChange(PlanId(9), true, ""), IsOk());
  EXPECT_EQ(session_->ChangedPlan(), nullptr);
  // A daemon that did not receive the answer sends the change again. The client
  // ignores the repeated change, as its answer is on the way.
  daemon_.SendEvent(event, {memfd.get()});
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  EXPECT_EQ(session_->ChangedPlan(), nullptr);
}

// Guards against a note that is not UTF-8 or is cut within a character: the
// daemon would end the session.
TEST_F(ChangeTest, ALongNoteIsCutAndStaysUtf8) {
  Open();
  std::string euros;
  for (int i = 0; i < 171; ++i) euros += "\u20ac";
  Mutex mutex;
  std::vector<std::string> notes;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_plan_taken()) return false;
    const MutexLock lock(mutex);
    notes.push_back(m.packet.request().plan_taken().note());
    return true;
  });
  EXPECT_THAT(session_->AnswerChange(PlanId(9), false, euros), IsOk());
  EXPECT_THAT(session_->AnswerChange(PlanId(9), false, "caf\xe9 a"), IsOk());
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());  // ends after both answers
  daemon_.SetScript({});
  EXPECT_THAT(notes,
              ::testing::ElementsAre(euros.substr(0, 510) + "??", "caf? a"));
}

TEST_F(PlanTest, AnInfeasiblePlanIsAnAnswer) {
  Open();
  plan::NodePlan plan = EmptyPlan();
  plan.infeasible = "host memory: 3 GiB needed, 1 GiB there";
  AnswerWith(plan);
  SLUICE_ASSERT_OK_AND_ASSIGN(const plan::NodePlan got,
                              session_->Plan(Profile(), absl::Seconds(20)));
  EXPECT_EQ(got.infeasible, plan.infeasible);
}

TEST_F(PlanTest, APlanThatBreaksARuleIsNotAdopted) {
  Open();
  plan::NodePlan plan = EmptyPlan();
  plan.ranks[0].classes.push_back(
      {.name = "unasked", .fractions = {.keep = 1}, .why = {}});
  AnswerWith(plan);
  EXPECT_THAT(session_->Plan(Profile(), absl::Seconds(20)),
              StatusIs(absl::StatusCode::kInternal));
}

TEST_F(PlanTest, APlanWithoutThisRankIsNotAdopted) {
  Open();
  plan::NodePlan plan = EmptyPlan();
  plan.ranks[0].rank = Rank(5);
  AnswerWith(plan);
  EXPECT_THAT(
      session_->Plan(Profile(), absl::Seconds(20)),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("no part for rank 0")));
}

TEST_F(PlanTest, AFailedPlanHasTheWorkersReason) {
  Open();
  wire::Event event;
  event.mutable_plan_failed()->set_reason("the worker ran 20 s: killed");
  const absl::Status why = WhyNoPlan(event);
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kFailedPrecondition,
                            "the worker ran 20 s: killed"));
  EXPECT_FALSE(IsCausedByPeer(why));
}

TEST_F(PlanTest, APeersDeathEndsTheWait) {
  Open();
  wire::Event event;
  event.mutable_peer_died()->set_rank(1);
  const absl::Status why = WhyNoPlan(event);
  EXPECT_THAT(why,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  EXPECT_TRUE(IsCausedByPeer(why));
}

// If a peer dies while the plan is made, the daemon sends PlanFailed before
// PeerDied.
TEST_F(PlanTest, AFailureBecauseAPeerLeftIsCausedByThePeer) {
  Open();
  wire::Event event;
  event.mutable_plan_failed()->set_reason("rank 1 left");
  event.mutable_plan_failed()->set_peer_left(true);
  const absl::Status why = WhyNoPlan(event);
  EXPECT_EQ(why.message(), "rank 1 left");
  EXPECT_TRUE(IsCausedByPeer(why));
}

TEST_F(PlanTest, NoPlanInTimeIsDeadlineExceeded) {
  Open();
  EXPECT_THAT(session_->Plan(Profile(), absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("all local ranks")));
}

}  // namespace
}  // namespace sluice::client
