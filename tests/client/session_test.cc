#include "client/session/session.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <future>

#include "client/session/connection.h"
#include "client/session/welcome.h"
#include "kernels/device/sim/sim.h"
#include "tests/client/session_fixture.h"
#include "tests/support/temp_dir.h"

namespace sluice::client {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

TEST(SessionOpen, AMissingSocketIsNamedWithAHint) {
  EXPECT_THAT(Session::Open({.socket = "/nonexistent/s"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("/nonexistent/s"),
                             HasSubstr("is sluiced running?"))));
}

// The client checks its options before it connects.
TEST(SessionOpen, RanksAndWaitsOutOfRangeAreRefused) {
  const auto code = [](auto change) {
    SessionOptions options{.socket = "/nonexistent/s", .job = "j"};
    change(options);
    return Session::Open(options).status().code();
  };
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  constexpr auto kFine = absl::StatusCode::kNotFound;  // no such socket
  EXPECT_EQ(code([](auto& o) { o.world_size = 0; }), kBad);
  EXPECT_EQ(code([](auto& o) { o.world_size = 1; }), kFine);
  EXPECT_EQ(code([](auto& o) { o.local_ranks = 0; }), kBad);
  EXPECT_EQ(code([](auto& o) { o.local_ranks = 1; }), kFine);
  const auto wait = [&](absl::Duration wait) {
    return code([&](auto& o) { o.lease_wait = wait; });
  };
  EXPECT_EQ(wait(absl::ZeroDuration()), kFine);
  constexpr absl::Duration kMost = absl::Hours(24 * 40);
  EXPECT_EQ(wait(kMost), kFine);
  EXPECT_EQ(wait(-absl::Milliseconds(1)), kBad);
  EXPECT_EQ(wait(kMost + absl::Milliseconds(1)), kBad);
}

TEST(FindDevice, AnInvisibleGpuIsRefusedWithTheVisibleOnes) {
  const testing::TempDir directory;
  SLUICE_CHECK_OK(device::CreateSimNode(
      directory.File("sim"), {.gpus = {{MiB(1), "pcie0", NumaIndex(0)},
                                       {MiB(1), "pcie0", NumaIndex(0)}},
                              .links = {{"pcie0", 0, 0}},
                              .host_memory = MiB(1)}));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto driver, device::OpenOwnedSimDriver(directory.File("sim")));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver->Devices());
  Welcome welcome;
  welcome.gpu_uuid = devices.at(1).uuid;
  SLUICE_ASSERT_OK_AND_ASSIGN(const DeviceIndex found,
                              FindDevice(*driver, welcome));
  EXPECT_EQ(found, devices[1].index);
  welcome.gpu_uuid = "GPU-elsewhere";
  EXPECT_THAT(
      FindDevice(*driver, welcome),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("CUDA_VISIBLE_DEVICES=GPU-elsewhere"),
                     HasSubstr(devices[0].uuid), HasSubstr(devices[1].uuid))));
}

// A daemon's death ends the sessions of observers, so QueryNode tries again.
TEST(QueryNode, AQueryWithoutAReplyIsTriedThreeTimesMore) {
  const testing::TempDir directory;
  SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                              wire::Listen(directory.File("s"), 0600));
  int asked = 0;
  std::thread daemon([&] {
    for (;;) {
      const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      if (!peer) return;
      const auto hello = wire::Receive(peer.get());
      // Without this field a daemon of an older protocol refuses the Hello.
      EXPECT_EQ((*hello)->packet.request().hello().oldest_protocol(),
                wire::kProtocols.oldest);
      wire::Packet welcome;
      welcome.set_id((*hello)->packet.id());
      welcome.set_generation(1);
      welcome.mutable_reply()->mutable_welcome()->set_protocol(1);
      EXPECT_THAT(wire::Send(peer.get(), welcome), IsOk());
      const auto query = wire::Receive(peer.get());
      asked += query.ok() && (*query)->packet.request().has_query();
    }
  });
  EXPECT_THAT(QueryNode(directory.File("s")), StatusIs(kUnavailable));
  shutdown(listener.get(), SHUT_RDWR);
  daemon.join();
  EXPECT_EQ(asked, 4);
}

TEST_F(SessionTest, ASnapshotWithoutTextIsAFault) {
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_query()) return false;
    wire::Reply reply;
    reply.mutable_snapshot();
    daemon_.Reply(m.packet.id(), reply);
    return true;
  });
  EXPECT_THAT(QueryNode(daemon_.options().socket),
              StatusIs(absl::StatusCode::kInternal));
}

TEST_F(SessionTest, AnAnswerWithoutTheQueriedPlanIsAFault) {
  EXPECT_THAT(QueryNode(daemon_.options().socket, "7"),
              StatusIs(absl::StatusCode::kInternal));
}

TEST_F(SessionTest, AQueryReturnsTheSnapshotsText) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const NodeStatus status,
                              QueryNode(daemon_.options().socket));
  EXPECT_EQ(status.json, "{}");
}

// Guards against a name that is not UTF-8, which breaks the protocol: the
// daemon would close the session without an explanation.
TEST(SessionOpen, ABadJobNameIsRefusedByTheClient) {
  EXPECT_THAT(Session::Open({.socket = "/nonexistent/s", .job = "caf\xe9"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("job has a character with code 233")));
}

// Guards against an error that says only that the socket was closed.
TEST(SessionOpen, ARefusalAtAcceptKeepsTheDaemonsMessage) {
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
    refuse();  // refuses before the client's first message
    EXPECT_THAT(connection->Call(wire::Request()), refused);
  }
  std::thread daemon(refuse);
  EXPECT_THAT(Session::Open({.socket = directory.File("s"), .job = "j"}),
              refused);
  daemon.join();
}

TEST_F(SessionTest, ASessionReportsTheNodesLimits) {
  Open();
  const NodeLimits limits = session_->limits();
  EXPECT_EQ(limits.driver, "sim");
  EXPECT_EQ(limits.gpu_total, MiB(8));
  EXPECT_EQ(limits.gpu_free, MiB(7));
  EXPECT_EQ(limits.host_total, MiB(8));
  EXPECT_EQ(limits.granularity, KiB(64));
}

TEST_F(SessionTest, ARefusedHelloKeepsTheDaemonsMessage) {
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
  // 320 extents need two packets.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region,
                              session_->LeaseGpu(MiB(20) - Bytes(1)));
  EXPECT_EQ(region->size(), MiB(20));
  std::memset(region->data(), 0x5a, region->size().size());
  EXPECT_EQ(region->data()[region->size().count() - 1], std::byte{0x5a});
}

TEST_F(SessionTest, ADestroyedRegionFreesItsLease) {
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

TEST_F(SessionTest, ANonPositiveLeaseIsRefusedByTheClient) {
  Open();
  EXPECT_THAT(session_->LeaseGpu(Bytes(0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(daemon_.count(wire::Request::kLease), 0);
}

TEST_F(SessionTest, MappingsStayAndNothingHangsAfterTheDaemonsEnd) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session_->LeaseGpu(MiB(1)));
  std::promise<SessionEvent> told;
  session_->OnEvent([&](const SessionEvent& event) { told.set_value(event); });
  daemon_.Beat();  // with a fresh heartbeat the gate would wait
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

TEST_F(SessionTest, AWaitingCallReturnsWhenTheDaemonEnds) {
  Open();
  daemon_.SetScript([&](const wire::Message&) {
    daemon_.Hang();
    return true;
  });
  EXPECT_THAT(session_->LeaseGpu(KiB(64)), StatusIs(kUnavailable));
}

// Guards against large leases that time out while the daemon pins their memory.
TEST_F(SessionTest, ALeaseIsAwaitedWhileTheDaemonReportsProgress) {
  SessionOptions options = daemon_.options();
  options.answer_timeout = absl::Seconds(1);
  SLUICE_ASSERT_OK_AND_ASSIGN(session_, Session::Open(options));
  std::atomic<bool> goes_on = true;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_lease()) return false;
    for (int i = 0; goes_on && i < 10; ++i) {
      absl::SleepFor(absl::Milliseconds(150));
      wire::Event event;
      event.mutable_lease_progress()->set_request_id(m.packet.id());
      daemon_.SendEvent(event);
    }
    if (goes_on) daemon_.Grant(m);
    return true;
  });
  EXPECT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  goes_on = false;
  EXPECT_THAT(session_->LeaseHost(KiB(64)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  daemon_.SetScript({});
}

TEST_F(SessionTest, GarbageFromTheDaemonEndsTheSession) {
  Open();
  daemon_.SetScript([&](const wire::Message& m) {
    wire::Reply reply;  // two extents without descriptors
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
  ASSERT_THAT(session_->LeaseHost(KiB(64)), IsOk());  // ends after the event
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

TEST_F(SessionTest, MappingTimesAreInOneReportOnly) {
  Open();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpu, session_->LeaseGpu(KiB(64)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto host, session_->LeaseHost(KiB(64)));
  std::atomic<int> told[2] = {-1, -1};
  std::atomic<bool> sane = true;
  daemon_.SetScript([&](const wire::Message& m) {
    const wire::StepReport& report = m.packet.request().step_report();
    if (!m.packet.request().has_step_report()) return false;
    for (const double s : report.map_seconds()) sane = sane && s >= 0 && s < 60;
    told[report.step() % 2] = report.map_seconds_size();
    return true;
  });
  for (const int step : {0, 1}) {
    EXPECT_THAT(session_->Report({.step = step, .seconds = 0.5}), IsOk());
  }
  EXPECT_TRUE(Soon([&] { return told[1] >= 0; }));
  EXPECT_EQ(told[0], 2);
  EXPECT_EQ(told[1], 0);
  EXPECT_TRUE(sane);
  daemon_.SetScript({});
}

// Guards against a figure that stays in the sums: the daemon would refuse all
// later reports, although Report returns OK.
TEST_F(SessionTest, AnImpossibleFigureIsRefusedAndNotCounted) {
  Open();
  std::atomic<int64_t> reports = 0, tokens = 0;
  daemon_.SetScript([&](const wire::Message& m) {
    if (!m.packet.request().has_step_report()) return false;
    const wire::StepTotals& totals = m.packet.request().step_report().totals();
    tokens = static_cast<int64_t>(totals.tokens());
    reports = static_cast<int64_t>(totals.reports());
    return false;
  });
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(session_->Report({.stall_seconds = std::nan(""), .tokens = 1}),
              refused);
  EXPECT_THAT(session_->Report({.h2d = Bytes(-1), .tokens = 1}), refused);
  EXPECT_THAT(session_->Report({.tokens = -1}), refused);
  EXPECT_THAT(session_->Report({.tokens = 10}), IsOk());
  EXPECT_TRUE(Soon([&] { return reports == 1; }));
  EXPECT_EQ(tokens, 10);
  daemon_.SetScript({});
}

TEST_F(SessionTest, GrantsUseTheSharedPages) {
  Open();
  daemon_.Beat();
  daemon_.limits().slots[0].limit_bytes[kD2h] = 100;
  EXPECT_EQ(session_->grants().Acquire(kD2h, Bytes(100)), absl::ZeroDuration());
  EXPECT_EQ(daemon_.use().slot.used_bytes[kD2h].load(), 100u);
}

}  // namespace
}  // namespace sluice::client
