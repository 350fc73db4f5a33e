// Tests sessions of real ranks with a real daemon: leases, refusals, grants,
// and the death of a rank or of the daemon.
#include "client/session/session.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/copy/copy_engine.h"
#include "proto/base/clock.h"
#include "proto/base/shortage.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::RunningDaemon;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

SessionOptions RankOf(const RunningDaemon& daemon, int rank, int ranks = 2) {
  return {.socket = daemon.socket(),
          .job = "pair",
          .rank = Rank(static_cast<uint64_t>(rank)),
          .world_size = ranks,
          .local_ranks = ranks,
          .gpu = DeviceIndex(static_cast<uint64_t>(rank))};
}

// Prints `text` to the test, which waits for it.
void Announce(const char* text) {
  std::puts(text);
  std::fflush(stdout);
}

TEST(ClientIntegration, ALoneRankLeasesFromTheOtherNumaNodeWhatItsOwnLacks) {
  RunningDaemon daemon("[sim]\nnuma_nodes = 2\nhost_memory = \"64MiB\"\n");
  const auto alone = Session::Open(RankOf(daemon, 0, 1));
  ASSERT_THAT(alone, IsOk());
  EXPECT_EQ((*alone)->limits().host_free, MiB(32 + 16));
  auto region = (*alone)->LeaseHost(MiB(40));
  ASSERT_THAT(region, IsOk());
  EXPECT_EQ((*region)->size(), MiB(40));
  std::memset((*region)->data(), 1, (*region)->size().size());
  EXPECT_EQ(ShortageOf((*alone)->LeaseHost(MiB(12)).status()),
            Shortage::kHostMemory);
  SessionOptions next = RankOf(daemon, 0, 1);
  next.job = "next";
  next.gpu = DeviceIndex(1);
  const auto other = Session::Open(next);
  ASSERT_THAT(other, IsOk());
  const Bytes free = (*other)->limits().host_free;
  EXPECT_GE(free, MiB(16));
  EXPECT_LT(free, MiB(32));
  EXPECT_THAT((*other)->LeaseHost(free), IsOk());
  region->reset();
  EXPECT_THAT((*alone)->LeaseHost(MiB(32)), IsOk());
}

TEST(ClientIntegration, AKilledRanksMemoryBecomesFreeAndItsPeerIsTold) {
  RunningDaemon daemon;
  const auto doomed = Child::Fork([&] {
    const auto session = Session::Open(RankOf(daemon, 0));
    ASSERT_THAT(session, IsOk());
    const auto gpu = (*session)->LeaseGpu(MiB(36));
    const auto host = (*session)->LeaseHost(MiB(100));
    ASSERT_THAT(gpu, IsOk());
    ASSERT_THAT(host, IsOk());
    std::memset((*gpu)->data(), 1, (*gpu)->size().size());
    Announce("leased");
    pause();
  });
  const auto peer = Child::Fork([&] {
    const auto session = Session::Open(RankOf(daemon, 1));
    ASSERT_THAT(session, IsOk());
    std::promise<SessionEvent> event;
    (*session)->OnEvent([&](const SessionEvent& e) { event.set_value(e); });
    Announce("listening");
    const SessionEvent got = event.get_future().get();
    EXPECT_EQ(got.kind, SessionEvent::Kind::kPeerDied);
    EXPECT_THAT(got.detail, HasSubstr("rank 0 of job pair"));
    (*session)->OnEvent(nullptr);
  });
  ASSERT_TRUE(doomed->WaitForOutput("leased", absl::Seconds(20)));
  ASSERT_TRUE(peer->WaitForOutput("listening", absl::Seconds(20)));
  doomed->Kill(SIGKILL);
  EXPECT_THAT(testing::WaitUntilFree(daemon.socket(), 0, absl::Seconds(20)),
              IsOk());
  peer->ExpectSuccess(absl::Seconds(20));
}

TEST(ClientIntegration, AGpuIsFoundByItsUuid) {
  RunningDaemon daemon;
  SessionOptions options = RankOf(daemon, 0, 1);
  options.gpu_uuid = "GPU-sim-1";
  const auto session = Session::Open(options);
  ASSERT_THAT(session, IsOk());
  const auto leased = (*session)->LeaseGpu(MiB(8));
  ASSERT_THAT(leased, IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpus, ListGpus(daemon.socket()));
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].leased, Bytes(0));
  EXPECT_EQ(gpus[1].leased, MiB(8));
  options.gpu_uuid = "GPU-sim-2";
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("GPU-sim-2"), HasSubstr("2 GPUs"))));
}

TEST(ClientIntegration, ARankStillCopiesAfterTheDaemonIsKilled) {
  RunningDaemon daemon;
  const auto rank = Child::Fork([&] {
    const auto opened = Session::Open(RankOf(daemon, 0, 1));
    ASSERT_THAT(opened, IsOk());
    Session& session = **opened;
    const auto gpu = session.LeaseGpu(MiB(8));
    const auto host = session.LeaseHost(MiB(8));
    ASSERT_THAT(gpu, IsOk());
    ASSERT_THAT(host, IsOk());
    const auto engine = CopyEngine::Start({.driver = &session.driver(),
                                           .device = session.limits().device,
                                           .gate = &session.grants()});
    ASSERT_THAT(engine, IsOk());
    std::promise<SessionEvent> event;
    session.OnEvent([&](const SessionEvent& e) { event.set_value(e); });
    Announce("ready");
    EXPECT_EQ(event.get_future().get().kind, SessionEvent::Kind::kDisconnected);
    // 400 MiB take 0.2 s on this link. Copies that waited for grants would not
    // end.
    for (int round = 1; round <= 50; ++round) {
      std::memset((*host)->data(), round, MiB(8).size());
      const Ticket in = (*engine)->Enqueue(
          {.pieces = {{(*gpu)->data(), (*host)->data(), MiB(8)}},
           .after = {(*engine)->MarkCompute()}});
      ASSERT_THAT((*engine)->Wait(in), IsOk());
      ASSERT_EQ((*gpu)->data()[MiB(8).count() - 1], std::byte(round));
    }
    EXPECT_THAT(session.LeaseGpu(MiB(1)),
                StatusIs(absl::StatusCode::kUnavailable));
    session.OnEvent(nullptr);
  });
  ASSERT_TRUE(rank->WaitForOutput("ready", absl::Seconds(20)));
  daemon.process().Kill(SIGKILL);
  rank->ExpectSuccess(absl::Seconds(20));
}

TEST(ClientIntegration, AFreedRegionCanBeLeasedAgainAtOnce) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto session,
                              Session::Open(RankOf(daemon, 0, 1)));
  for (int i = 0; i < 10; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto all,
                                session->LeaseGpu(session->limits().gpu_total));
    all->data()[all->size().count() - 1] = std::byte{1};
  }
}

// Returns the kernel's flags of the mapping at `address` ("rd wr dc dd").
std::string MappingFlags(const std::byte* address) {
  std::ifstream file("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      found = begin <= wanted && wanted < end;
    } else if (found && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(ClientIntegration, LeasedMemoryIsInNoChildAndInNoCoreDump) {
  RunningDaemon daemon;
  const auto session = Session::Open(RankOf(daemon, 0, 1));
  ASSERT_THAT(session, IsOk());
  const auto host = (*session)->LeaseHost(MiB(9));
  ASSERT_THAT(host, IsOk());
  for (const std::byte* at :
       {(*host)->data(), (*host)->data() + (*host)->size().count() - 1}) {
    EXPECT_THAT(MappingFlags(at), AllOf(HasSubstr(" dc "), HasSubstr(" dd ")));
  }
}

TEST(ClientIntegration, ARefusalStatesAskedAndFreeBytes) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto session,
                              Session::Open(RankOf(daemon, 0, 1)));
  EXPECT_THAT(session->LeaseGpu(GiB(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("1 GiB"), HasSubstr("36 MiB"))));
}

TEST(ClientIntegration, ARefusalKeepsItsCauseOverTheSocket) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto session,
                              Session::Open(RankOf(daemon, 0, 1)));
  EXPECT_EQ(ShortageOf(session->LeaseGpu(GiB(1)).status()),
            Shortage::kGpuMemory);
  EXPECT_EQ(ShortageOf(session->LeaseHost(GiB(900)).status()),
            Shortage::kHostMemory);
}

TEST(ClientIntegration, AGpuThatTheNodeLacksIsRefused) {
  RunningDaemon daemon;
  SessionOptions options = RankOf(daemon, 0, 1);
  options.gpu = DeviceIndex(9);
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9")));
}

// Lets two ranks acquire 60 MiB of grants each, at the same time, on one link
// of 200 MB/s. Returns the seconds that each rank took.
std::vector<double> TakeGrantsSideBySide() {
  RunningDaemon daemon(R"(
[sim]
links = [{name = "x", h2d_bytes_per_s = 200e6, d2h_bytes_per_s = 200e6}]
gpu_links = ["x", "x"]
)");
  const std::string go = daemon.runtime_dir() + "/go";
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Child::Fork([&, rank] {
      const auto opened = Session::Open(RankOf(daemon, rank));
      ASSERT_THAT(opened, IsOk());
      GrantGate& gate = (*opened)->grants();
      gate.Acquire(kH2d, MiB(64));  // uses up the first grants
      Announce("ready");
      while (access(go.c_str(), F_OK) != 0) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      const absl::Time begin = MonotonicClock().Now();
      for (int i = 0; i < 60; ++i) gate.Acquire(kH2d, MiB(1));
      std::printf("seconds %f\n",
                  absl::ToDoubleSeconds(MonotonicClock().Now() - begin));
    }));
  }
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->WaitForOutput("ready", absl::Seconds(20)));
  }
  std::ofstream(go) << "!";
  std::vector<double> seconds;
  for (const auto& rank : ranks) {
    const std::string out = rank->Join().out;
    seconds.push_back(std::atof(out.substr(out.rfind(' ')).c_str()));
  }
  return seconds;
}

TEST(ClientIntegration, RanksOnOneLinkGetFairShares) {
  // 60 MiB take 0.63 s at half of 200 MB/s, and 0.31 s alone. If a busy machine
  // delays the daemon's heartbeat by 20 ms, ranks rightly run without grants,
  // so the test tries again.
  std::vector<double> seconds;
  for (int attempt = 0; attempt < 8; ++attempt) {
    seconds = TakeGrantsSideBySide();
    if (*std::min_element(seconds.begin(), seconds.end()) > 0.45) break;
  }
  EXPECT_THAT(seconds, ::testing::Each(::testing::AllOf(::testing::Gt(0.45),
                                                        ::testing::Lt(5))));
}

struct Copied {
  double h2d = 0, d2h = 0;  // bytes per second
};

// Returns the rates of the grants to a rank that asks for all it can in both
// directions, on a link of 90 MB/s for both directions together.
Copied TakeGrantsBothWays() {
  RunningDaemon daemon(R"(
[sim]
gpus = 1
links = [{name = "x", parent = "memory"}, {name = "memory", both_bytes_per_s = 90e6}]
gpu_links = ["x"]
)");
  const auto session = Session::Open(RankOf(daemon, 0, 1));
  EXPECT_THAT(session, IsOk());
  if (!session.ok()) return {};
  GrantGate& gate = (*session)->grants();
  std::atomic<bool> done = false;
  std::atomic<int64_t> offloaded = 0;
  std::thread offloads([&] {
    while (!done) {
      gate.Acquire(kD2h, KiB(256), &done);
      offloaded += KiB(256).count();
    }
  });
  gate.Acquire(kH2d, MiB(16));  // uses up the first grants
  const absl::Time begin = MonotonicClock().Now();
  const int64_t before = offloaded;
  for (int i = 0; i < 60; ++i) gate.Acquire(kH2d, MiB(1));
  const double seconds = absl::ToDoubleSeconds(MonotonicClock().Now() - begin);
  const auto copied = static_cast<double>(offloaded - before);
  done = true;
  offloads.join();
  return {static_cast<double>(MiB(60).count()) / seconds, copied / seconds};
}

TEST(ClientIntegration, PrefetchesGoBeforeOffloadsOnASharedLink) {
  Copied copied;
  // Tries again if the machine delayed the daemon's heartbeat by 20 ms, or kept
  // a thread of the rank from the CPU for so long that its grants expired.
  for (int attempt = 0; attempt < 20; ++attempt) {
    copied = TakeGrantsBothWays();
    if (copied.h2d + copied.d2h < 100e6 && copied.h2d > 70e6 &&
        copied.d2h > 5e6 && copied.d2h < 15e6) {
      break;
    }
  }
  EXPECT_LT(copied.h2d + copied.d2h, 100e6);
  EXPECT_GT(copied.h2d, 70e6);
  EXPECT_NEAR(copied.d2h, 10e6, 5e6);
}

}  // namespace
}  // namespace sluice::client
