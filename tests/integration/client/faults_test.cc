// What goes wrong below ranks: each of their device calls fails once, at its
// first and at later calls; a GPU is lost; the daemon may open few files. A
// rank gets one clear line, nobody crashes, the next rank is served, and
// nothing is left. (The daemon believes nothing of the simulated node's state,
// so what is planted there reaches its ranks alone; its own calls:
// daemon_service_test.)
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"
#include "tests/integration/daemon/harness.h"
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
                                             .slice = KiB(256)}));
  using device::CopyDirection;
  for (int round = 1; round <= 3; ++round) {
    std::memset(host.data(), round, host.size().size());
    const Ticket in =
        engine->Enqueue({.direction = CopyDirection::kHostToDevice,
                         .pieces = {{gpu.data(), host.data(), MiB(1)}},
                         .after = {engine->MarkCompute()}});
    SLUICE_RETURN_IF_ERROR(engine->Wait(in));
    SLUICE_CHECK(gpu.data()[MiB(1).count() - 1] == std::byte(round));
    const Ticket out = engine->Enqueue(
        {.direction = CopyDirection::kDeviceToHost,
         .pieces = {{host.data() + MiB(1).count(), gpu.data(), MiB(1)}},
         .after = {in}});
    SLUICE_RETURN_IF_ERROR(engine->Wait(out));
    SLUICE_CHECK(host.data()[MiB(2).count() - 1] == std::byte(round));
  }
  return engine->Drain();
}

// All that a rank does with memory, twice: what it gave back is leased again.
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

// In a process of its own: "whole", or the line that a person would read.
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
  // One line, nothing else: it says what a person can do something about.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1)
      << result.out;
  EXPECT_LT(result.out.size(), 600u);
  EXPECT_TRUE(result.out == kWhole || result.out.size() > 20) << result.out;
  return result.out;
}

// The daemon serves, and has all of its memory back.
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

std::unique_ptr<device::SimNode> NodeOf(const RunningDaemon& daemon) {
  auto node = device::SimNode::Open(daemon.runtime_dir() + "/sim");
  SLUICE_CHECK_OK(node.status());
  return *std::move(node);
}

// Whether the fault was met: entries of faults are few, and none is taken.
bool WasMet(device::SimNode& node) {
  constexpr int kEntries = 32;
  for (int i = 0; i < kEntries; ++i) {
    if (!node.FailCall("LoadModule", 1).ok()) return false;
  }
  return true;
}

struct Fault {
  const char* call;
  // Whether the rank's code hears of it. Else it is met while something ends,
  // which goes on all the same.
  bool felt;
};

class FailingCall : public ::testing::TestWithParam<Fault> {};

TEST_P(FailingCall, IsOneLineForAtMostOneRankAndNothingIsLeft) {
  const auto [call, felt] = GetParam();
  for (const int nth : {1, 2, 7}) {
    const std::string when = fmt::format("call {} of {}", nth, call);
    RunningDaemon daemon;
    const auto node = NodeOf(daemon);
    ASSERT_THAT(node->FailCall(call, nth), IsOk());
    // At once, or while a later rank is served.
    int hit = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const std::string said = RunRank(daemon);
      if (said == kWhole) continue;
      EXPECT_THAT(said, HasSubstr(call)) << when;
      ++hit;
    }
    EXPECT_LE(hit, felt ? 1 : 0) << when;
    EXPECT_GE(hit, felt && nth == 1 ? 1 : 0) << when;
    EXPECT_EQ(RunRank(daemon), kWhole) << when;
    ExpectNothingLeft(daemon, when);
    EXPECT_TRUE(nth > 1 || WasMet(*node)) << when;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FailingCall,
    ::testing::Values(Fault{"Devices", true}, Fault{"Import", true},
                      Fault{"Release", true}, Fault{"Reserve", true},
                      Fault{"FreeReservation", false}, Fault{"Map", true},
                      Fault{"Unmap", false}, Fault{"SetAccess", true},
                      Fault{"CreateStream", true},
                      Fault{"DestroyStream", false}, Fault{"CreateEvent", true},
                      Fault{"DestroyEvent", false}, Fault{"RecordEvent", true},
                      Fault{"StreamWaitEvent", true},
                      Fault{"SynchronizeStream", true},
                      Fault{"CopyAsync", true}, Fault{"Copy", true}),
    [](const auto& info) { return std::string(info.param.call); });

// The daemon's own calls: it reads what is to fail when it opens the node,
// which stays as it is while this process has it open.
class FailingDaemonCall : public ::testing::TestWithParam<const char*> {
 protected:
  // How many ranks heard of it; at most one does.
  int Hears(int nth) {
    const std::string when = fmt::format("the daemon's {} {}", GetParam(), nth);
    RunningDaemon daemon;
    const auto node = NodeOf(daemon);
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
    ExpectNothingLeft(daemon, when);
    return hears;
  }
};

// Memory that is not there at once is asked for again.
TEST_P(FailingDaemonCall, OfAnExtentThatIsMadeIsTriedAgain) {
  for (const int nth : {1, 2}) EXPECT_EQ(Hears(nth), 0);
}

TEST_P(FailingDaemonCall, IsOneLineForAtMostOneRankAndNothingIsLeft) {
  for (const int nth : {3, 5, 7, 8, 13}) Hears(nth);
}

INSTANTIATE_TEST_SUITE_P(Faults, FailingDaemonCall,
                         ::testing::Values("Create", "Export"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST(Faults, ALostGpuIsOneLineForItsRanksAndNothingToOthers) {
  RunningDaemon daemon;
  EXPECT_EQ(RunRank(daemon, 0), kWhole);
  ASSERT_THAT(NodeOf(daemon)->LoseGpu(DeviceIndex(0)), IsOk());
  EXPECT_THAT(RunRank(daemon, 0), StartsWith("error: "));
  EXPECT_EQ(RunRank(daemon, 1), kWhole);
  ExpectNothingLeft(daemon, "a lost GPU");
}

// What a daemon may have open limits how many it takes, so that it never runs
// out itself: who is one too many is told, and who comes later is served.
TEST(Faults, ADaemonThatMayOpenFewFilesSaysSoAndServesWhoComesLater) {
  RunningDaemon daemon("", {.open_files = 64});
  std::vector<RawClient> crowd;
  std::string said = kWhole;
  for (int i = 0; i < 64 && said == kWhole; ++i) {
    auto one = RawClient::Connect(daemon.socket());
    if (one.ok() && one->Observe().ok()) crowd.push_back(*std::move(one));
    said = RunRank(daemon);
  }
  EXPECT_THAT(said, HasSubstr("the limit is")) << "with " << crowd.size();
  crowd.clear();
  // The daemon hears of their ends one after the other.
  const absl::Time end = absl::Now() + absl::Seconds(10);
  do {
    said = RunRank(daemon);
  } while (said != kWhole && absl::Now() < end);
  EXPECT_EQ(said, kWhole);
  ExpectNothingLeft(daemon, "few files");
}

}  // namespace
}  // namespace sluice::client
