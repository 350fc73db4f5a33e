// Tests faults below ranks and below the daemon: one device call fails, a GPU
// is lost, or the daemon may open few files. A rank must get one clear line, no
// process may crash, the next rank must be served, and nothing may be left.
// Each planted fault must occur. The daemon reads the simulated node's state
// only at its start, so faults that are planted later reach only its ranks.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "kernels/device/sim/node.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_daemon.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::sluice::testing::IsOk;
using ::sluice::testing::RawClient;
using ::sluice::testing::RunningDaemon;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWhole[] = "whole\n";

absl::Status CopyThereAndBack(Session& session, Region& gpu, Region& host) {
  SLUICE_ASSIGN_OR_RETURN(const auto engine,
                          CopyEngine::Start({.driver = &session.driver(),
                                             .device = session.limits().device,
                                             .gate = &session.grants(),
                                             .slice = KiB(256),
                                             .record_timeline = true}));
  using device::CopyDirection;
  for (int round = 1; round <= 3; ++round) {
    std::memset(host.data(), round, host.size().size());
    const Ticket in =
        engine->Enqueue({.direction = CopyDirection::kHostToDevice,
                         .pieces = {{gpu.data(), host.data(), MiB(1)}},
                         .after = {engine->MarkCompute()}});
    SLUICE_RETURN_IF_ERROR(engine->Wait(in));
    SLUICE_CHECK(in.done());
    SLUICE_CHECK(gpu.data()[MiB(1).count() - 1] == std::byte(round));
    const Ticket out = engine->Enqueue(
        {.direction = CopyDirection::kDeviceToHost,
         .pieces = {{host.data() + MiB(1).count(), gpu.data(), MiB(1)}},
         .after = {in}});
    SLUICE_RETURN_IF_ERROR(engine->Wait(out));
    SLUICE_CHECK(host.data()[MiB(2).count() - 1] == std::byte(round));
  }
  SLUICE_RETURN_IF_ERROR(engine->Drain());
  engine->TakeTimeline();
  return absl::OkStatus();
}

// Leases, uses and frees memory as a rank does, twice, so that freed memory is
// leased again.
absl::Status LiveAsRank(const std::string& socket, int gpu) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto session,
      Session::Open({.socket = socket,
                     .job = "faults",
                     .gpu = DeviceIndex(static_cast<uint64_t>(gpu))}));
  for (int time = 0; time < 2; ++time) {
    SLUICE_ASSIGN_OR_RETURN(const auto in_gpu, session->LeaseGpu(MiB(2)));
    SLUICE_ASSIGN_OR_RETURN(const auto in_host, session->LeaseHost(MiB(2)));
    SLUICE_RETURN_IF_ERROR(CopyThereAndBack(*session, *in_gpu, *in_host));
    SLUICE_RETURN_IF_ERROR(session->Report({.step = 1, .seconds = 0.1}));
  }
  return absl::OkStatus();
}

// Runs a rank in a child process. Returns "whole", or the error line that a
// user would read.
std::string RunRank(const RunningDaemon& daemon, int gpu = 0) {
  const auto rank = Child::Fork([&] {
    const absl::Status lived = LiveAsRank(daemon.socket(), gpu);
    const std::string said(lived.message());
    std::fputs(lived.ok() ? kWhole : ("error: " + said + "\n").c_str(), stdout);
    std::fflush(stdout);
  });
  const ChildResult result = rank->Join(absl::Seconds(60));
  EXPECT_EQ(result.signal, 0) << result.out << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  // One line, neither of a few letters nor of a page.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1)
      << result.out;
  EXPECT_LT(result.out.size(), 600u);
  EXPECT_TRUE(result.out == kWhole || result.out.size() > 20) << result.out;
  return result.out;
}

// Expects that all memory of GPU 0 and of the host becomes free again.
void ExpectNothingLeft(RunningDaemon& daemon, const std::string& when) {
  ASSERT_THAT(
      testing::WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)).status(),
      IsOk())
      << when;
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool host,
                              testing::HostPool(daemon.socket(), 0));
  EXPECT_EQ(host.leased_bytes(), 0u) << when;
  EXPECT_EQ(host.quarantined_bytes(), 0u) << when;
}

std::unique_ptr<device::SimNode> NodeIn(const std::string& runtime_dir) {
  auto node = device::SimNode::Open(runtime_dir + "/sim");
  SLUICE_CHECK_OK(node.status());
  return *std::move(node);
}

// Returns whether no planted fault is left.
bool WasMet(const std::string& runtime_dir) {
  const auto node = device::NodeMapping::Open(runtime_dir + "/sim");
  SLUICE_CHECK_OK(node.status());
  return (*node)->state().failures_armed == 0;
}

// Waits until no planted fault is left: background work may meet a fault late.
bool IsMetSoon(const std::string& runtime_dir) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!WasMet(runtime_dir) && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  return WasMet(runtime_dir);
}

struct Fault {
  const char* call;
  // Whether the error fails the rank or the daemon's start. If not, the caller
  // goes on, as in a cleanup.
  bool felt;

  friend void PrintTo(const Fault& fault, std::ostream* out) {
    *out << fault.call << (fault.felt ? ", felt" : ", not felt");
  }
};

class FailingCall : public ::testing::TestWithParam<Fault> {};

TEST_P(FailingCall, AFaultGivesAtMostOneRankOneErrorLineAndLeavesNothing) {
  const auto [call, felt] = GetParam();
  for (const int nth : {1, 2, 7}) {
    const std::string when = fmt::format("call {} of {}", nth, call);
    RunningDaemon daemon;
    ASSERT_THAT(NodeIn(daemon.runtime_dir())->FailCall(call, nth), IsOk());
    // The fault occurs at once, or while a later rank is served.
    int hit = 0;
    for (int rank = 0; rank < nth && !WasMet(daemon.runtime_dir()); ++rank) {
      const std::string said = RunRank(daemon);
      if (said == kWhole) continue;
      EXPECT_THAT(said, HasSubstr(call)) << when;
      ++hit;
    }
    EXPECT_TRUE(WasMet(daemon.runtime_dir())) << when;
    EXPECT_LE(hit, felt ? 1 : 0) << when;
    EXPECT_GE(hit, felt && nth == 1 ? 1 : 0) << when;
    EXPECT_EQ(RunRank(daemon), kWhole) << when;
    ExpectNothingLeft(daemon, when);
  }
}

constexpr Fault kOfRanks[] = {{"Devices", true},
                              {"Import", true},
                              {"Release", true},
                              {"Reserve", true},
                              {"FreeReservation", false},
                              {"Map", true},
                              {"Unmap", false},
                              {"SetAccess", true},
                              {"CreateStream", true},
                              {"DestroyStream", false},
                              {"CreateEvent", true},
                              {"CreateTimedEvent", true},
                              {"DestroyEvent", false},
                              {"RecordEvent", true},
                              {"ElapsedTime", false},
                              {"StreamWaitEvent", true},
                              // `done` is then true.
                              {"QueryEvent", false},
                              {"SynchronizeEvent", true},
                              {"SynchronizeStream", true},
                              {"CopyAsync", true},
                              {"Copy", true}};

INSTANTIATE_TEST_SUITE_P(Faults, FailingCall, ::testing::ValuesIn(kOfRanks),
                         [](const auto& info) {
                           return std::string(info.param.call);
                         });

// Faults of the daemon's own calls. The daemon reads the planted faults when it
// opens the node. The node's state is kept while this process has it open.
class FailingDaemonCall : public ::testing::TestWithParam<const char*> {
 protected:
  // Returns how many ranks saw the fault; at most one does.
  int Hears(int nth) {
    const std::string when = fmt::format("the daemon's {} {}", GetParam(), nth);
    // Small extents, so that leases make many of them.
    RunningDaemon daemon("[pools]\nextent_bytes = \"256KiB\"\n");
    const auto node = NodeIn(daemon.runtime_dir());
    EXPECT_THAT(node->FailCall(GetParam(), nth), IsOk());
    daemon.KillAndStartNext();
    int hears = 0;
    for (int rank = 0; rank < 5; ++rank) {
      const std::string said = RunRank(daemon);
      if (said == kWhole) continue;
      EXPECT_THAT(said, HasSubstr(GetParam())) << when;
      ++hears;
    }
    EXPECT_LE(hears, 1) << when;
    EXPECT_TRUE(WasMet(daemon.runtime_dir())) << when;
    ExpectNothingLeft(daemon, when);
    return hears;
  }
};

TEST_P(FailingDaemonCall, AnEarlyFaultIsRetriedWithoutAnErrorToRanks) {
  for (const int nth : {1, 2}) EXPECT_EQ(Hears(nth), 0);
}

TEST_P(FailingDaemonCall,
       AFaultGivesAtMostOneRankOneErrorLineAndLeavesNothing) {
  for (const int nth : {3, 5, 7, 8, 13}) Hears(nth);
}

constexpr const char* kOfTheDaemon[] = {"Create", "Export"};

INSTANTIATE_TEST_SUITE_P(Faults, FailingDaemonCall,
                         ::testing::ValuesIn(kOfTheDaemon),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// A daemon that is to take over fails to start, or it starts without the failed
// part. In both cases the rank's memory is kept for the next daemon.
class FailingStart : public ::testing::TestWithParam<Fault> {};

TEST_P(FailingStart, TheRanksSessionAndMemorySurviveAFault) {
  const auto [call, felt] = GetParam();
  testing::KeptDaemon daemon;
  daemon.Start();
  RawClient rank = testing::AttachedWithMemory(daemon, "job");
  daemon.Kill();
  const auto node = NodeIn(daemon.File(""));
  ASSERT_THAT(node->FailCall(call, 1), IsOk());
  if (felt) {
    EXPECT_EQ(daemon.StartThatFails(), 1);
    EXPECT_THAT(daemon.Log(), HasSubstr(call));
  }
  daemon.Start();
  EXPECT_TRUE(IsMetSoon(daemon.File("")));
  testing::ExpectKept(daemon, rank);
}

constexpr Fault kOfAStart[] = {{"Devices", true},
                               {"Granularity", true},
                               {"Adopt", true},
                               {"HeldOutside", false}};

INSTANTIATE_TEST_SUITE_P(Faults, FailingStart, ::testing::ValuesIn(kOfAStart),
                         [](const auto& info) {
                           return std::string(info.param.call);
                         });

// Faults that are not planted here, and why.
constexpr std::pair<const char*, const char*> kElsewhere[] = {
    {"Keep", "daemon_service_test covers a driver that cannot keep memory"},
    {"Usage", "not called on sim, where HeldOutside lists the holders"},
    {"HostRegister",
     "only cuda ranks pin memory: fake_cuda's failures cover it"},
    {"HostUnregister", "the same"},
    {"FillAsync", "only the preset dev poisons buffers before copies"},
    {"LoadModule", "sim has no kernels"},
    {"GetFunction", "the same"},
    {"Launch", "the same"},
};

TEST(Faults, EveryCallHasAPlantedFaultOrAReason) {
  std::set<std::string> named;
  for (const Fault& each : kOfRanks) named.insert(each.call);
  for (const char* call : kOfTheDaemon) named.insert(call);
  for (const Fault& each : kOfAStart) named.insert(each.call);
  for (const auto& [call, why] : kElsewhere) {
    EXPECT_TRUE(named.insert(call).second) << call << " is planted as well";
  }
  RunningDaemon daemon;
  const std::string said(
      NodeIn(daemon.runtime_dir())->FailCall("none", 1).message());
  const std::set<std::string> known =
      absl::StrSplit(said.substr(said.find("known: ") + 7), ' ');
  EXPECT_EQ(named, known);
}

TEST(Faults, ALostGpuGivesOneLineToItsRanksAndNoneToOthers) {
  RunningDaemon daemon;
  EXPECT_EQ(RunRank(daemon, 0), kWhole);
  ASSERT_THAT(NodeIn(daemon.runtime_dir())->LoseGpu(DeviceIndex(0)), IsOk());
  EXPECT_THAT(RunRank(daemon, 0), StartsWith("error: "));
  EXPECT_EQ(RunRank(daemon, 1), kWhole);
  ExpectNothingLeft(daemon, "a lost GPU");
}

// The daemon limits its sessions by the files that it may open, so that it
// never runs out of descriptors: a session too many is refused in one line, and
// a later session is served.
TEST(Faults, ADaemonWithFewFilesSaysSoAndServesLaterRanks) {
  RunningDaemon daemon("", {.open_files = 64});
  std::vector<RawClient> crowd;
  std::string said = kWhole;
  for (int i = 0; i < 64 && said == kWhole; ++i) {
    auto one = RawClient::Connect(daemon.socket());
    if (one.ok() && one->Observe().ok()) crowd.push_back(*std::move(one));
    said = RunRank(daemon);
  }
  EXPECT_THAT(said, HasSubstr("the limit is"))
      << "with " << crowd.size() << " sessions";
  crowd.clear();
  // The daemon learns one by one that the sessions have ended.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  do {
    said = RunRank(daemon);
  } while (said != kWhole && absl::Now() < end);
  EXPECT_EQ(said, kWhole);
  ExpectNothingLeft(daemon, "few files");
}

}  // namespace
}  // namespace sluice::client
