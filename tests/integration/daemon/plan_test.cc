// Tests plans from the real daemon and the real worker.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

plan::RankProfile ProfileOf(int rank, int gpu) {
  plan::RankProfile profile;
  profile.rank = Rank(rank);
  profile.gpu = DeviceIndex(gpu);
  profile.kinds[0].layers = 4;
  plan::SegmentKind kind;
  kind.name = "qkv.forward.full";
  kind.trace.buffers = {
      {0, 0, 3, KiB(64)}, {1, 1, 2, KiB(32)}, {2, 2, 4, KiB(32)}};
  kind.trace.end = 4;
  kind.seconds = 0.001;
  kind.executions = 8;
  profile.segments = {kind};
  plan::SkeletalClass input{
      .name = "layer_input", .bytes_per_layer = MiB(1), .must_swap = true};
  plan::SkeletalClass rest{
      .name = "ffn_up", .bytes_per_layer = MiB(4), .recompute_seconds = 0.01};
  profile.classes = {input, rest};
  profile.kinds[0].forward_layer_seconds = 0.1;
  profile.kinds[0].backward_layer_seconds = 0.2;
  return profile;
}

absl::Status Submit(RawClient& client, std::string_view bytes) {
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd fd, wire::ToMemfd("profile", bytes));
  wire::Request request;
  request.mutable_submit_profile();
  return client.Call(request, {fd.get()}).status();
}

// Returns the plan that the next event carries.
absl::StatusOr<plan::NodePlan> NextPlan(RawClient& client) {
  UniqueFd fd;
  SLUICE_ASSIGN_OR_RETURN(const wire::Event event,
                          client.NextEvent(absl::Seconds(20), &fd));
  if (event.has_plan_failed()) {
    return absl::InternalError(event.plan_failed().reason());
  }
  if (!event.has_plan_ready()) return absl::InternalError("another event");
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, wire::FromMemfd(fd));
  return plan::DecodeNodePlan(bytes);
}

TEST(DaemonPlan, BothRanksGetOneValidPlanAndARepeatComesFromTheCache) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient b, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo", 0, 2, 0), IsOk());
  ASSERT_THAT(b.Hello("demo", 1, 2, 1), IsOk());
  PlanId first;
  for (int round = 0; round < 2; ++round) {
    ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
    ASSERT_THAT(Submit(b, plan::Encode(ProfileOf(1, 1))), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto plan_a, NextPlan(a));
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto plan_b, NextPlan(b));
    EXPECT_EQ(plan_a.id, plan_b.id);
    EXPECT_EQ(plan_a.infeasible, "");
    ASSERT_EQ(plan_a.ranks.size(), 2u);
    EXPECT_THAT(plan::ValidateRankPlan(ProfileOf(0, 0), plan_a.ranks[0]),
                IsOk());
    EXPECT_THAT(plan::ValidateRankPlan(ProfileOf(1, 1), plan_b.ranks[1]),
                IsOk());
    if (round == 0) first = plan_a.id;
    EXPECT_EQ(plan_a.id, first);
  }
}

// Requests a plan for a profile in which a layer's forward takes `seconds`.
absl::StatusOr<plan::NodePlan> AskOnce(const std::string& socket,
                                       double seconds) {
  SLUICE_ASSIGN_OR_RETURN(RawClient client, RawClient::Connect(socket));
  SLUICE_RETURN_IF_ERROR(client.Hello("demo").status());
  plan::RankProfile profile = ProfileOf(0, 0);
  profile.kinds[0].forward_layer_seconds = seconds;
  SLUICE_RETURN_IF_ERROR(Submit(client, plan::Encode(profile)));
  return NextPlan(client);
}

TEST(DaemonPlan, TheSameUnitIsSolvedOnce) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto first, AskOnce(daemon.socket(), 0.1));
  EXPECT_EQ(first.units_solved, 1);
  EXPECT_EQ(first.units_known, 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto second, AskOnce(daemon.socket(), 0.2));
  EXPECT_EQ(second.units_solved, 0);
  EXPECT_EQ(second.units_known, 1);
  EXPECT_EQ(second.ranks[0].segments[0].placement.offsets,
            first.ranks[0].segments[0].placement.offsets);
}

// Returns random lifetimes and sizes, which take seconds to solve.
plan::Trace HardTrace(int64_t buffers) {
  plan::Trace trace;
  std::mt19937 random(5);
  for (int64_t id = 0; id < buffers; ++id) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 400);
    trace.buffers.push_back(
        {id, id, id + length, Bytes(64 * (1 + random() % 5000))});
    trace.end = std::max(trace.end, id + length);
  }
  return trace;
}

TEST(DaemonPlan, SluicectlStatusShowsTheWorkersProgress) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo"), IsOk());
  plan::RankProfile profile = ProfileOf(0, 0);
  profile.segments[0].trace = HardTrace(20000);
  ASSERT_THAT(Submit(a, plan::Encode(profile)), IsOk());
  // The worker's time limit is 20 s.
  std::string seen;
  for (int i = 0; i < 400 && seen.find(" segments; of rank 0: ") == seen.npos;
       ++i) {
    const auto status = Child::Spawn(
        {BinaryPath("sluicectl"), "--socket", daemon.socket(), "status"});
    seen = status->Join().out;
    ASSERT_THAT(seen, HasSubstr("PLANNING"))
        << "the plan was solved before its progress was shown";
  }
  EXPECT_THAT(seen, HasSubstr("of 1 segments; of rank 0: "));
}

// 5 MiB of a layer leave within its forward of 0.1 s and come back within its
// backward of 0.2 s.
TEST(DaemonPlan, APlansCopiesArePromisedWhileTheRankIsAttached) {
  RunningDaemon daemon;
  const auto shown = [&] {
    return Child::Spawn({BinaryPath("sluicectl"), "--socket", daemon.socket(),
                         "status", "--json"})
        ->Join()
        .out;
  };
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(a.Hello("demo"), IsOk());
    EXPECT_THAT(shown(), ContainsRegex("\"plan_copies\": *null"));
    ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
    ASSERT_THAT(NextPlan(a), IsOk());
    const std::string status = shown();
    EXPECT_THAT(status, ContainsRegex("\"d2h_bytes_per_second\": *52428800"));
    EXPECT_THAT(status,
                ContainsRegex("\"promised_d2h_bytes_per_second\": *52428800"));
    EXPECT_THAT(status,
                ContainsRegex("\"promised_h2d_bytes_per_second\": *26214400"));
    EXPECT_THAT(status, ContainsRegex("\"h2d_bytes_per_step\": *20971520"));
  }
  EXPECT_THAT(shown(), Not(HasSubstr("promised_d2h_bytes_per_second")));
}

TEST(DaemonPlan, AnInfeasiblePlanStatesTheReason) {
  RunningDaemon daemon("[budgets]\njob_host_bytes = \"4MiB\"\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo"), IsOk());
  auto profile = ProfileOf(0, 0);
  profile.classes[0].bytes_per_layer = MiB(64);
  ASSERT_THAT(Submit(a, plan::Encode(profile)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto plan, NextPlan(a));
  EXPECT_THAT(plan.infeasible, HasSubstr("host"));
}

TEST(DaemonPlan, BadProfilesAreRefusedAndTheSessionGoesOn) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo"), IsOk());
  EXPECT_THAT(Submit(a, "no json"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Submit(a, plan::Encode(ProfileOf(3, 0))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("profile is of rank 3")));
  // The file is not sealed: its bytes could change under the reader.
  char path[] = "/tmp/sluice-unsealed-XXXXXX";
  UniqueFd file(mkstemp(path));
  unlink(path);
  wire::Request request;
  request.mutable_submit_profile();
  EXPECT_THAT(
      a.Call(request, {file.get()}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sealed")));
  ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
  EXPECT_THAT(NextPlan(a), IsOk());
}

// Guards against a daemon that dies because the repeated id has no profile.
TEST(DaemonPlan, AnotherRequestWithTheIdOfAnAnsweredProfileIsRefused) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient b, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo", 0, 2, 0), IsOk());
  ASSERT_THAT(b.Hello("demo", 1, 2, 1), IsOk());
  // The submission is answered, but the plan still waits for the other rank.
  ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
  constexpr uint64_t kSubmitted = 2;  // the submission's id; Hello's is 1
  wire::Request other;
  other.mutable_free()->set_lease_id(1);
  EXPECT_THAT(
      a.Call(other, {}, kSubmitted),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("profile")));
  EXPECT_THAT(a.Lease(wire::Lease::GPU, MiB(1)), IsOk());
  ASSERT_THAT(Submit(b, plan::Encode(ProfileOf(1, 1))), IsOk());
  EXPECT_THAT(NextPlan(b), IsOk());
}

TEST(DaemonPlan, ADeadRankEndsTheOtherRanksWaitForAPlan) {
  RunningDaemon daemon;
  const auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo", 1, 2, 1), IsOk());
    ASSERT_EQ(write(STDOUT_FILENO, "here\n", 5), 5);
    pause();
  });
  ASSERT_TRUE(rank->WaitForOutput("here", absl::Seconds(10)));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient a, RawClient::Connect(daemon.socket()));
  ASSERT_THAT(a.Hello("demo", 0, 2, 0), IsOk());
  ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
  rank->Kill(SIGKILL);
  // The plan's failure and the peer's death come in any order.
  bool failed = false, died = false;
  for (int i = 0; i < 2; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto event,
                                a.NextEvent(absl::Seconds(20)));
    if (event.has_plan_failed()) {
      failed = true;
      EXPECT_THAT(event.plan_failed().reason(),
                  HasSubstr("rank 1 of job demo left"));
    }
    died |= event.has_peer_died();
  }
  EXPECT_TRUE(failed && died);
}

TEST(DaemonPlan, AMissingWorkerFailsThePlanButNotTheDaemon) {
  // A copy of the daemon in a folder without a worker.
  TempDir alone;
  const std::string lonely = alone.File("sluiced");
  const auto copied = Child::Spawn({"/bin/cp", BinaryPath("sluiced"), lonely});
  copied->ExpectSuccess();
  const std::string config = alone.File("sluiced.toml");
  std::ofstream(config) << "[http]\nlisten = \"\"\n";
  const auto daemon = Child::Spawn(
      {lonely, "--config", config, "--runtime-dir", alone.path() + "/run"});
  ASSERT_TRUE(daemon->WaitForOutput("sluiced: ready", absl::Seconds(10)));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      RawClient a, RawClient::Connect(alone.path() + "/run/session.sock"));
  ASSERT_THAT(a.Hello("demo"), IsOk());
  ASSERT_THAT(Submit(a, plan::Encode(ProfileOf(0, 0))), IsOk());
  EXPECT_THAT(NextPlan(a), StatusIs(absl::StatusCode::kInternal,
                                    HasSubstr("start the plan worker")));
  EXPECT_THAT(a.Lease(wire::Lease::GPU, MiB(1)), IsOk());
}

// Returns an encoded profile with a trace of `buffers` buffers.
std::string LongProfile(int rank, int gpu, int buffers) {
  plan::RankProfile profile = ProfileOf(rank, gpu);
  plan::Trace& trace = profile.segments[0].trace;
  trace.buffers.clear();
  for (int i = 0; i < buffers; ++i) {
    trace.buffers.push_back({i, i, i + 2, KiB(1 + i % 7)});
  }
  trace.end = buffers + 2;
  return plan::Encode(profile);
}

TEST(DaemonPlan, ManyProfilesOfOneRankDelayNoOtherAndAreNotKept) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient honest,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(honest.Hello("honest", 0, 1, 1), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient greedy,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(greedy.Hello("greedy"), IsOk());
  const int before = daemon.Descriptors();
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const UniqueFd fd, wire::ToMemfd("profile", LongProfile(0, 0, 60000)));
  int most = 0, refused = 0;
  const auto read = [&] {
    auto reply = wire::Receive(greedy.fd(), MSG_DONTWAIT);
    refused += reply.ok() && reply->has_value() &&
               (*reply)->packet.reply().has_error();
    return reply.ok();
  };
  // The session ends if too many of its descriptors wait to be closed.
  bool ended = false;
  constexpr int kSent = 1000;
  for (int i = 0; i < kSent && !ended; ++i) {
    wire::Packet packet;
    packet.set_id(static_cast<uint64_t>(100 + i));
    packet.mutable_request()->mutable_submit_profile();
    const int fds[] = {fd.get()};
    absl::Status sent = wire::Send(greedy.fd(), packet, fds);
    while (absl::IsResourceExhausted(sent)) {
      if (!read()) absl::SleepFor(absl::Milliseconds(1));
      sent = wire::Send(greedy.fd(), packet, fds);
    }
    ended = !sent.ok();
    read();
    if (i % 100 == 0) most = std::max(most, daemon.Descriptors());
  }
  EXPECT_TRUE(ended || refused > kSent / 2) << refused;
  EXPECT_LE(most, before + 300);
  const absl::Time start = absl::Now();
  ASSERT_THAT(Submit(honest, plan::Encode(ProfileOf(0, 1))), IsOk());
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  greedy.socket().Reset();
  for (int i = 0; i < 500 && daemon.Descriptors() > before; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_LE(daemon.Descriptors(), before);
}

TEST(DaemonPlan, AProfileThatIsTooLongIsRefusedWithLimitAndRemedy) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  EXPECT_THAT(Submit(client, std::string(5 << 20, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the profile has 5242880 bytes, and the limit "
                                 "is 4194304: record fewer segments")));
  std::string bomb = "{\"segments\":[";
  while (bomb.size() < (4 << 20) - 10) bomb += "[],";
  const Bytes before = daemon.Memory("VmRSS");
  EXPECT_THAT(Submit(client, bomb + "[]]}"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has more than 524288 values")));
  EXPECT_LT(daemon.Memory("VmRSS"), before + MiB(16));
  EXPECT_THAT(Submit(client, plan::Encode(ProfileOf(0, 0))), IsOk());
}

// Guards against a small plan that takes 14 s, not 0.04 s, behind the hard one.
TEST(DaemonPlan, AHardProfileOfOneUserEndsSoonWhenAnotherWaits) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  RunningDaemon daemon;
  ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient hard,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(hard.Hello("hard"), IsOk());
  plan::RankProfile profile = ProfileOf(0, 0);
  std::mt19937 random(7);
  plan::Trace& trace = profile.segments[0].trace;
  trace.buffers.clear();
  constexpr int kBuffers = 20000;
  for (int i = 0; i < kBuffers; ++i) {
    const int64_t lower = static_cast<int64_t>(random() % kBuffers);
    const int64_t length = 1 + static_cast<int64_t>(random() % 400);
    trace.buffers.push_back(
        {i, lower, lower + length,
         Bytes(64 * (1 + static_cast<int64_t>(random() % 1000)))});
  }
  trace.end = 2 * kBuffers;
  ASSERT_THAT(Submit(hard, plan::Encode(profile)), IsOk());
  const auto other = Child::Fork([&] {
    ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("small", 0, 1, 1), IsOk());
    const absl::Time start = absl::Now();
    ASSERT_THAT(Submit(client, plan::Encode(ProfileOf(0, 1))), IsOk());
    ASSERT_THAT(NextPlan(client), IsOk());
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  });
  const ChildResult result = other->Join();
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
}

}  // namespace
}  // namespace sluice::testing
