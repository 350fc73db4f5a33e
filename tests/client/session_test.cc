#include "client/session/session.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <future>

#include "client/session/connection.h"
#include "proto/plan/codec.h"
#include "tests/client/scripted_daemon.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::client {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class SessionTest : public ::testing::Test {
 protected:
  void Open() {
    SLUICE_ASSERT_OK_AND_ASSIGN(session_, Session::Open(daemon_.options()));
  }
  static bool Soon(const std::function<bool()>& claim) {
    for (int i = 0; i < 5000 && !claim(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return claim();
  }

  ScriptedDaemon daemon_;
  std::unique_ptr<Session> session_;
};

TEST(SessionOpen, AMissingSocketIsOneClearLine) {
  EXPECT_THAT(Session::Open({.socket = "/nonexistent/s"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("/nonexistent/s"),
                             HasSubstr("is sluiced running?"))));
}

// Wrong once: "sluiced has closed the session" was all that one heard, or that
// the socket was closed.
TEST(SessionOpen, ARefusalAtAcceptIsTheDaemonsOwnWords) {
  const testing::TempDir directory;
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              wire::Listen(directory.File("s"), 0600));
  wire::Packet refusal;
  refusal.mutable_reply()->mutable_error()->set_code(
      static_cast<int>(absl::StatusCode::kResourceExhausted));
  refusal.mutable_reply()->mutable_error()->set_message("the limit is 8");
  const auto refused =
      StatusIs(absl::StatusCode::kResourceExhausted, "the limit is 8");
  std::vector<UniqueFd> peers;
  const auto refuse = [&] {
    peers.emplace_back(accept(listener.get(), nullptr, nullptr));
    EXPECT_THAT(wire::Send(peers.back().get(), refusal), IsOk());
    shutdown(peers.back().get(), SHUT_RDWR);
  };
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto connection,
                                Connection::Open(
                                    directory.File("s"), [](wire::Message) {},
                                    [](const std::string&) {}));
    refuse();  // before it says anything
    EXPECT_THAT(connection->Call(wire::Request()), refused);
  }
  std::thread daemon(refuse);
  EXPECT_THAT(Session::Open({.socket = directory.File("s"), .job = "j"}),
              refused);
  daemon.join();
}

TEST_F(SessionTest, TellsTheNodesLimits) {
  Open();
  const NodeLimits limits = session_->limits();
  EXPECT_EQ(session_->id(), SessionId(11));
  EXPECT_EQ(limits.driver, "sim");
  EXPECT_EQ(limits.gpu_total, MiB(8));
  EXPECT_EQ(limits.gpu_free, MiB(7));
  EXPECT_EQ(limits.host_total, MiB(8));
  EXPECT_EQ(limits.granularity, KiB(64));
}

TEST_F(SessionTest, ARefusedHelloIsTheDaemonsOwnWords) {
  daemon_.SetScript([&](const wire::Message& m) {
    daemon_.ReplyError(m.packet.id(), absl::StatusCode::kPermissionDenied,
                       "no more sessions");
    return true;
  });
  EXPECT_THAT(
      Session::Open(daemon_.options()),
      StatusIs(absl::StatusCode::kPermissionDenied, "no more sessions"));
}

TEST_F(SessionTest, ALeaseOfManyExtentsIsOneContiguousRange) {
  Open();
  // 320 extents: two packets.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region,
                              session_->LeaseGpu(MiB(20) - Bytes(1)));
  EXPECT_EQ(region->size(), MiB(20));
  EXPECT_EQ(region->lease(), LeaseId(77));
  std::memset(region->data(), 0x5a, region->size().size());
  EXPECT_EQ(region->data()[region->size().count() - 1], std::byte{0x5a});
}

TEST_F(SessionTest, ARegionIsFreedWhenItEnds) {
  Open();
  ASSERT_THAT(session_->LeaseHost(KiB(128)), IsOk());
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 1);
}

TEST_F(SessionTest, AFailedMappingFreesTheLease) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_lease()) return false;
    wire::Reply reply;
    reply.mutable_granted()->set_lease_id(5);
    reply.mutable_granted()->set_parts(1);
    reply.mutable_granted()->add_extent_bytes(KiB(64).size());
    daemon_.Reply(m.packet.id(), reply, {STDERR_FILENO});
    return true;
  });
  EXPECT_FALSE(session_->LeaseHost(KiB(64)).ok());
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 1);
}

TEST_F(SessionTest, AForkedChildDoesNotGetTheMemory) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session_->LeaseGpu(KiB(64)));
  region->data()[0] = std::byte{42};
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(region->data()[0]));
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST_F(SessionTest, ANonPositiveLeaseIsRefusedHere) {
  Open();
  EXPECT_THAT(session_->LeaseGpu(Bytes(0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(daemon_.count(wire::Request::kLease), 0);
}

TEST_F(SessionTest, WhenTheDaemonGoesMappingsStayAndNothingHangs) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session_->LeaseGpu(MiB(1)));
  std::promise<SessionEvent> told;
  session_->OnEvent([&](const SessionEvent& event) { told.set_value(event); });
  daemon_.Beat();  // alive until now: the gate would wait for it
  daemon_.Hang();
  EXPECT_EQ(told.get_future().get().kind, SessionEvent::Kind::kDisconnected);
  region->data()[0] = std::byte{9};
  EXPECT_EQ(region->data()[0], std::byte{9});
  daemon_.Beat();
  session_->grants().Acquire(kH2d, GiB(1));
  EXPECT_THAT(session_->LeaseGpu(KiB(64)),
              StatusIs(kUnavailable, HasSubstr("open a session again")));
  EXPECT_THAT(session_->Report({}), StatusIs(kUnavailable));
}

TEST_F(SessionTest, ACallThatIsWaitingWhenTheDaemonGoesReturns) {
  Open();
  daemon_.SetScript([&](const wire::Message&) {
    daemon_.Hang();
    return true;
  });
  EXPECT_THAT(session_->LeaseGpu(KiB(64)), StatusIs(kUnavailable));
}

TEST_F(SessionTest, GarbageFromTheDaemonEndsTheSession) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    wire::Reply reply;  // two extents, no descriptor
    reply.mutable_granted()->add_extent_bytes(1);
    reply.mutable_granted()->add_extent_bytes(1);
    daemon_.Reply(m.packet.id(), reply);
    return true;
  });
  EXPECT_THAT(session_->LeaseGpu(KiB(64)),
              StatusIs(kUnavailable, HasSubstr("file descriptors")));
}

TEST_F(SessionTest, EventsBeforeTheHandlerAreNotLost) {
  Open();
  wire::Event event;
  event.mutable_peer_died()->set_job("test");
  event.mutable_peer_died()->set_rank(1);
  event.mutable_peer_died()->set_reason("killed by signal 9");
  daemon_.SendEvent(event);
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());  // behind the event
  std::vector<SessionEvent> events;
  session_->OnEvent([&](const SessionEvent& e) { events.push_back(e); });
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, SessionEvent::Kind::kPeerDied);
  EXPECT_EQ(events[0].detail, "rank 1 of job test: killed by signal 9");
  session_->OnEvent(nullptr);
}

TEST_F(SessionTest, ARegionMayOutliveItsSession) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(auto region, session_->LeaseGpu(KiB(64)));
  session_.reset();
  region->data()[0] = std::byte{1};
  region.reset();
}

TEST_F(SessionTest, AReportDoesNotWaitForItsAnswer) {
  Open();
  daemon_.SetScript([](const wire::Message& m) {
    return m.packet.request().has_step_report();  // never answered
  });
  EXPECT_THAT(session_->Report({.step = 3, .seconds = 0.5}), IsOk());
  EXPECT_TRUE(
      Soon([&] { return daemon_.count(wire::Request::kStepReport) == 1; }));
}

// Wrong once: the second answer freed the lease of the first, which was in use.
TEST_F(SessionTest, ASecondAnswerFreesNothing) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    if (m.packet.request().has_lease()) daemon_.Grant(m);
    return false;
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session_->LeaseGpu(KiB(64)));
  daemon_.SetScript(nullptr);
  ASSERT_THAT(session_->LeaseGpu(KiB(64)), IsOk());   // behind what it caused
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 1);  // the one just dropped
}

wire::Event SomebodyDied() {
  wire::Event event;
  event.mutable_peer_died()->set_job("test");
  return event;
}

// 600 extents come in three packets. The daemon dies behind the first; the one
// that takes its place says something, is asked again, and answers whole.
TEST_F(SessionTest, ADaemonThatTakesOverIsAskedAgainWhatWasNotAnsweredWhole) {
  Open();
  std::vector<uint64_t> asked;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_lease()) return false;
    asked.push_back(m.packet.id());
    if (asked.size() > 1) return false;
    wire::Reply reply;  // the first part, of memory that nobody keeps
    reply.mutable_granted()->set_lease_id(77);
    reply.mutable_granted()->set_parts(3);
    reply.mutable_granted()->add_extent_bytes(KiB(64).size());
    daemon_.Reply(m.packet.id(), reply, {STDERR_FILENO});
    daemon_.TakeOver();
    daemon_.SendEvent(SomebodyDied());
    return true;
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region,
                              session_->LeaseHost(600 * KiB(64)));
  EXPECT_EQ(region->size(), 600 * KiB(64));
  region->data()[region->size().size() - 1] = std::byte{1};
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0], asked[1]);
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 0);
}

TEST_F(SessionTest, WhatNobodyWaitsForIsSaidAgainToADaemonThatTakesOver) {
  Open();
  std::atomic<int> answered = 0;
  daemon_.SetScript([&](const wire::Message& m) {
    return m.packet.request().has_step_report() && answered++ == 0;
  });
  ASSERT_THAT(session_->Report({.step = 3, .seconds = 0.5}), IsOk());
  EXPECT_TRUE(Soon([&] { return answered == 1; }));
  daemon_.TakeOver();
  daemon_.SendEvent(SomebodyDied());
  EXPECT_TRUE(Soon([&] { return answered == 2; }));
  // Answered, it is not said to a third one.
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  daemon_.TakeOver();
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  EXPECT_EQ(answered, 2);
}

TEST_F(SessionTest, ALeaseThatCameTooLateIsGivenBackOnce) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto connection, Connection::Open(
                                 daemon_.options().socket, [](wire::Message) {},
                                 [](const std::string&) {}));
  std::atomic<bool> given_up = false;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_lease()) return false;
    while (!given_up) sched_yield();
    daemon_.Grant(m);
    daemon_.Grant(m);
    return true;
  });
  wire::Request request;
  request.mutable_lease()->set_bytes(KiB(64).size());
  EXPECT_THAT(connection->Call(request, {}, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  given_up = true;
  EXPECT_TRUE(Soon([&] { return daemon_.count(wire::Request::kFree) > 0; }));
  EXPECT_THAT(connection->Call(request), IsOk());
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 1);
}

TEST_F(SessionTest, GrantsGoThroughTheSharedPages) {
  Open();
  daemon_.Beat();
  daemon_.limits().slots[0].limit_bytes[kD2h] = 100;
  EXPECT_EQ(session_->grants().Acquire(kD2h, Bytes(100)), absl::ZeroDuration());
  EXPECT_EQ(daemon_.use().slot.used_bytes[kD2h].load(), 100u);
}

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
  // Answers the profile with `plan`, the event before the reply.
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

// What the daemon is told of a changed plan that nobody asked for.
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

TEST_F(ChangeTest, ASessionThatTakesNoChangesAnswersSo) {
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

TEST_F(PlanTest, AFailedWorkerIsItsReason) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_submit_profile()) return false;
    wire::Event event;
    event.mutable_plan_failed()->set_reason("the worker ran 20 s: killed");
    daemon_.SendEvent(event);
    return false;
  });
  EXPECT_THAT(session_->Plan(Profile(), absl::Seconds(20)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "the worker ran 20 s: killed"));
}

TEST_F(PlanTest, APeersDeathEndsTheWait) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_submit_profile()) return false;
    wire::Event event;
    event.mutable_peer_died()->set_rank(1);
    daemon_.SendEvent(event);
    return false;
  });
  EXPECT_THAT(session_->Plan(Profile(), absl::Seconds(20)),
              StatusIs(kUnavailable, HasSubstr("rank 1")));
}

TEST_F(PlanTest, NoPlanInTimeIsDeadlineExceeded) {
  Open();
  EXPECT_THAT(session_->Plan(Profile(), absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("all local ranks")));
}

}  // namespace
}  // namespace sluice::client
