// Tests requests that are answered twice, late, never, or by the next daemon.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "client/session/connection.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "tests/client/session_fixture.h"

namespace sluice::client {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

// Guards against freeing the first answer's lease, which is in use.
TEST_F(SessionTest, ASecondAnswerToALeaseFreesNothing) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    if (m.packet.request().has_lease()) daemon_.Grant(m);
    return false;
  });
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session_->LeaseGpu(KiB(64)));
  daemon_.SetScript(nullptr);
  // The client sends this request after any that the second answer causes.
  ASSERT_THAT(session_->LeaseGpu(KiB(64)), IsOk());
  // The one Free is for the region that the line above leased and dropped.
  EXPECT_EQ(daemon_.count(wire::Request::kFree), 1);
}

wire::Event SomebodyDied() {
  wire::Event event;
  event.mutable_peer_died()->set_job("test");
  return event;
}

// 600 extents need three packets. The daemon dies after the first packet. The
// next daemon sends an event, receives the request again, and answers
// completely.
TEST_F(SessionTest, AnIncompletelyAnsweredRequestIsRepeatedAfterATakeover) {
  Open();
  std::vector<uint64_t> asked;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_lease()) return false;
    asked.push_back(m.packet.id());
    if (asked.size() > 1) return false;
    wire::Reply reply;  // the first of three parts
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

// Guards against a rank that attaches during a takeover and waits for a minute.
TEST_F(SessionTest, AnUnansweredHelloIsRepeatedAfterATakeover) {
  int asked = 0;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_hello() || ++asked > 1) return false;
    daemon_.TakeOver();
    wire::Event event;
    event.mutable_taken_over();
    daemon_.SendEvent(event);
    return true;
  });
  Open();
  EXPECT_EQ(asked, 2);
}

TEST_F(SessionTest, AnUnansweredReportIsRepeatedAfterATakeover) {
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
  // A third daemon does not receive the report, as the second answered it.
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  daemon_.TakeOver();
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  EXPECT_EQ(answered, 2);
}

// Guards against losing steps in the counts while the daemon is away.
TEST_F(SessionTest, StepsOfUnsentReportsAreInTheNextReport) {
  Open();
  std::atomic<bool> away = true;
  std::atomic<int64_t> tokens = 0, reports = 0, heard = 0;
  daemon_.SetScript([&](const wire::Message& m) {
    while (away) sched_yield();
    if (!m.packet.request().has_step_report()) return false;
    const wire::StepTotals& totals = m.packet.request().step_report().totals();
    tokens = static_cast<int64_t>(totals.tokens());
    reports = static_cast<int64_t>(totals.reports());
    ++heard;
    return false;
  });
  // The socket cannot hold so many reports, nor may so many be unanswered.
  constexpr int kSteps = 5000;
  int unsent = 0;
  for (int step = 1; step <= kSteps; ++step) {
    unsent += session_->Report({.step = step, .tokens = 10}).ok() ? 0 : 1;
  }
  EXPECT_GT(unsent, 0);
  away = false;
  ASSERT_TRUE(
      Soon([&] { return session_->Report({.step = 1, .tokens = 10}).ok(); }));
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());  // ends after the report
  EXPECT_GT(reports, kSteps);
  EXPECT_EQ(tokens, 10 * reports);
  EXPECT_LT(heard, kSteps);
  daemon_.SetScript(nullptr);
}

// A call may wait a minute for room in the socket. Guards against a report that
// waits behind that call.
TEST_F(SessionTest, AReportDoesNotWaitBehindACallThatWaitsForRoom) {
  Open();
  std::atomic<bool> stopped = true;
  daemon_.SetScript([&](const wire::Message&) {
    while (stopped) sched_yield();
    return false;
  });
  while (session_->Report({.step = 1}).ok()) {
  }
  std::atomic<bool> over = false;
  std::thread call([&] {
    EXPECT_THAT(session_->LeaseHost(KiB(64)), IsOk());
    over = true;
  });
  // Gives the call time to start its wait for room.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread report([&] {
    EXPECT_THAT(session_->Report({.step = 1}),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_FALSE(over);
    stopped = false;
  });
  EXPECT_TRUE(Soon([&] { return !stopped; }));
  stopped = false;
  report.join();
  call.join();
  daemon_.SetScript({});
}

// Guards against a call that waits its whole timeout twice: for room, and for
// the answer.
TEST_F(SessionTest, TheTimeoutCoversTheWaitForRoomAndForTheAnswer) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto connection, Connection::Open(
                                 daemon_.options().socket, [](wire::Message) {},
                                 [](const std::string&) {}));
  // A timeout of 2 s that starts only after this time would end after 3.9 s.
  constexpr auto kRoomAfter = std::chrono::milliseconds(1900);
  std::atomic<bool> stopped = true, deaf = false;
  daemon_.SetScript([&](const wire::Message&) {
    while (stopped) sched_yield();
    return deaf.load();
  });
  wire::Request request;
  request.mutable_free()->set_lease_id(1);
  while (connection->Post(request).ok()) {
  }
  wire::Request report;
  report.mutable_step_report();
  EXPECT_FALSE(connection->Post(report).ok());
  EXPECT_FALSE(connection->Awaits(wire::Request::kStepReport));
  deaf = true;
  std::thread reader([&] {
    std::this_thread::sleep_for(kRoomAfter);
    stopped = false;
  });
  const absl::Time start = MonotonicClock().Now();
  EXPECT_THAT(connection->Call(request, {}, absl::Seconds(2)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(MonotonicClock().Now() - start, absl::Milliseconds(3900));
  reader.join();
  daemon_.SetScript({});
}

TEST(PendingCalls, PostedRequestsWithoutAnAnswerAreLimited) {
  PendingCalls calls;
  const wire::Request request;
  for (size_t i = 0; i < PendingCalls::kMostPosted; ++i) {
    ASSERT_THAT(calls.Add(request, {}, PendingCalls::Waits::kNobody), IsOk());
  }
  EXPECT_THAT(calls.Add(request, {}, PendingCalls::Waits::kNobody),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(calls.Add(request, {}, PendingCalls::Waits::kCaller), IsOk());
}

TEST(PendingCalls, EachRequestAcknowledgesEarlierAnswers) {
  PendingCalls calls;
  const auto add = [&] {
    const auto packet = calls.Add({}, {}, PendingCalls::Waits::kCaller);
    EXPECT_THAT(packet, IsOk());
    return packet->request().answered_up_to();
  };
  const auto answer = [&](uint64_t id) {
    wire::Message message;
    message.packet.set_id(id);
    message.packet.mutable_reply()->mutable_freed();
    calls.Answer(std::move(message));
    calls.Take(id);
  };
  EXPECT_EQ(add(), 0u);
  EXPECT_EQ(add(), 0u);
  answer(2);
  EXPECT_EQ(add(), 0u) << "request 1 is not answered yet";
  answer(1);
  EXPECT_EQ(add(), 2u);
  answer(3);
  answer(4);
  EXPECT_EQ(add(), 4u);
}

TEST_F(SessionTest, OnlyTheNewestReportsAreRepeated) {
  Open();
  constexpr int kKept = static_cast<int>(PendingCalls::kMostReports);
  constexpr int kSteps = kKept + 20;
  std::atomic<int> heard = 0, oldest = kSteps;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_step_report()) return false;
    const auto step = static_cast<int>(m.packet.request().step_report().step());
    oldest = std::min(oldest.load(), step);
    ++heard;
    return true;  // never answered
  });
  for (int step = 0; step < kSteps; ++step) {
    while (!session_->Report({.step = step}).ok()) sched_yield();
  }
  EXPECT_TRUE(Soon([&] { return heard == kSteps; }));
  heard = 0;
  oldest = kSteps;
  daemon_.TakeOver();
  daemon_.SendEvent(SomebodyDied());
  EXPECT_TRUE(Soon([&] { return heard == kKept; }));
  EXPECT_EQ(oldest, kSteps - kKept);
  daemon_.SetScript({});
}

TEST_F(SessionTest, ALateLeaseIsFreedOnce) {
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

// Guards against a lease that stays in the daemon's queue after its caller's
// timeout.
TEST_F(SessionTest, AWaitingLeaseIsGivenUpAtItsCallersTimeout) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto connection, Connection::Open(
                                 daemon_.options().socket, [](wire::Message) {},
                                 [](const std::string&) {}));
  std::atomic<uint64_t> asked = 0, given_up = 0;
  daemon_.SetScript([&](const wire::Message& m) {
    if (m.packet.request().has_give_up()) {
      given_up = m.packet.request().give_up().request_id();
    }
    if (m.packet.request().has_lease()) asked = m.packet.id();
    return true;
  });
  wire::Request request;
  request.mutable_lease()->set_bytes(KiB(64).size());
  request.mutable_lease()->set_wait_ms(1);
  EXPECT_THAT(connection->Call(request, {}, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(Soon([&] { return given_up != 0; }));
  EXPECT_EQ(given_up, asked);
}

}  // namespace
}  // namespace sluice::client
