#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/poison.h"
#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"
#include "tests/support/sanitizer.h"

namespace sluice::device {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::kThreadSanitizer;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kH2D = CopyDirection::kHostToDevice;
constexpr auto kD2H = CopyDirection::kDeviceToHost;

double Seconds() {
  return absl::ToDoubleSeconds(MonotonicClock().Now() - absl::UnixEpoch());
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec +
                                    usage.ru_stime.tv_usec);
}

// Copies `size` on a new stream of `gpu`, waits, and returns the seconds it
// took.
double TimedCopy(Driver& driver, DeviceIndex gpu, CopyDirection direction,
                 Bytes size) {
  std::vector<std::byte> from(size.size(), std::byte{1}), to(size.size());
  const Stream stream = *driver.CreateStream(gpu);
  const double begin = Seconds();
  EXPECT_THAT(driver.CopyAsync(to.data(), from.data(), size, direction, stream),
              IsOk());
  EXPECT_THAT(driver.SynchronizeStream(stream), IsOk());
  const double seconds = Seconds() - begin;
  EXPECT_EQ(to, from);
  EXPECT_THAT(driver.DestroyStream(stream), IsOk());
  return seconds;
}

// Expects that `measure` never returns less than 98 % of `seconds` and, in one
// of 20 calls, at most ten times as much: the machine may be loaded.
// sim_link_test tests exactly how streams share a link.
void ExpectTakes(double seconds, const std::function<double()>& measure) {
  double best = 1e9;
  for (int i = 0; i < 20 && best > 10 * seconds; ++i) {
    const double took = measure();
    EXPECT_GE(took, 0.98 * seconds);
    best = std::min(best, took);
  }
  EXPECT_LE(best, 10 * seconds);
}

TEST_F(SimTest, ACopyTakesTheTimeThatItsLinkRequires) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 200e6, 100e6), IsOk());
  const Bytes size(20'000'000);
  ExpectTakes(0.1,
              [&] { return TimedCopy(*driver_, DeviceIndex(2), kH2D, size); });
  ExpectTakes(0.2,
              [&] { return TimedCopy(*driver_, DeviceIndex(2), kD2H, size); });
}

TEST_F(SimTest, ManySmallCopiesReachTheLinksSpeed) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 200e6, 0), IsOk());
  std::vector<std::byte> from(20'000), to(20'000);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(2)));
  ExpectTakes(0.1, [&] {
    const double begin = Seconds();
    for (int i = 0; i < 1000; ++i) {
      EXPECT_THAT(driver_->CopyAsync(to.data(), from.data(), Bytes(20'000),
                                     kH2D, stream),
                  IsOk());
    }
    EXPECT_THAT(driver_->SynchronizeStream(stream), IsOk());
    return Seconds() - begin;
  });
}

TEST_F(SimTest, ThrottlingSleepsInsteadOfBurningTheCpu) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan's own thread uses the CPU";
  ASSERT_THAT(node_->SetLinkSpeed("own", 2.5e6, 0), IsOk());
  const double begin = CpuSeconds();
  TimedCopy(*driver_, DeviceIndex(2), kH2D, Bytes(1'500'000));  // takes 0.6 s
  // On a loaded machine under ASan, moving the bytes takes 0.02 s of CPU time.
  EXPECT_LE(CpuSeconds() - begin, 0.4);
}

// Two processes use two GPUs on one link, and know of each other only by the
// shared state. Alone, a copy takes 0.2 s. Together they take as long as one
// after the other, and neither is served first.
TEST_F(SimTest, ProcessesShareALink) {
  ASSERT_THAT(node_->SetLinkSpeed("shared", 100e6, 0), IsOk());
  driver_.reset();
  // A loaded machine may start one process late, so the test tries again.
  double earlier = 0;
  for (int i = 0; i < 5 && earlier < 0.3; ++i) {
    const double start = Seconds() + 0.5;
    const auto copy = [&](DeviceIndex gpu) {
      const auto driver = Open();
      absl::SleepFor(absl::Seconds(start - Seconds()));
      TimedCopy(*driver, gpu, kH2D, Bytes(20'000'000));
      std::printf("%f\n", Seconds() - start);
    };
    const auto first = Child::Fork([&] { copy(DeviceIndex(0)); });
    const auto second = Child::Fork([&] { copy(DeviceIndex(1)); });
    const double ends[] = {std::atof(first->Join().out.c_str()),
                           std::atof(second->Join().out.c_str())};
    EXPECT_GE(std::max(ends[0], ends[1]), 0.39);
    earlier = std::min(ends[0], ends[1]);
  }
  EXPECT_GE(earlier, 0.3);
}

TEST_F(SimTest, AProcessKilledWhileCopyingFreesTheLink) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 100e6, 0), IsOk());
  driver_.reset();
  const auto child = Child::Fork([this] {
    const auto driver = Open();
    std::puts("copying");
    std::fflush(stdout);
    TimedCopy(*driver, DeviceIndex(2), kH2D, Bytes(500'000'000));
  });
  ASSERT_TRUE(child->WaitForOutput("copying", absl::Seconds(20)));
  absl::SleepFor(absl::Milliseconds(20));
  child->Kill(SIGKILL);
  child->Join();
  driver_ = Open();
  ExpectTakes(0.1, [&] {
    return TimedCopy(*driver_, DeviceIndex(2), kH2D, Bytes(10'000'000));
  });
}

TEST_F(SimTest, WaitingOnTheComputeStreamCountsAsStall) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 20e6, 0), IsOk());
  std::vector<std::byte> from(20'000'000), to(20'000'000);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  const double begin = Seconds();
  ASSERT_THAT(driver_->CopyAsync(to.data(), from.data(), Bytes(20'000'000),
                                 kH2D, stream),
              IsOk());
  ASSERT_THAT(driver_->RecordEvent(event, stream), IsOk());
  const Stream compute = driver_->ComputeStream(DeviceIndex(2));
  ASSERT_THAT(driver_->StreamWaitEvent(compute, event), IsOk());
  const CallCounters counters = driver_->counters();
  // The copy takes 1 s, but most of it may pass before this thread waits.
  EXPECT_GE(counters.stall, absl::Milliseconds(50));
  EXPECT_LE(counters.stall, absl::Seconds(Seconds() - begin));
  EXPECT_EQ(counters.stream_synchronize + counters.event_synchronize, 0u);
  EXPECT_EQ(counters.copied_h2d, Bytes(20'000'000));
}

TEST_F(SimTest, ACopyBehindAnEventTakesItsTimeFromTheEventOn) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 100e6, 100e6), IsOk());
  std::vector<std::byte> from(20'000'000), to(20'000'000);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream out,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream in,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  const Bytes size(20'000'000);
  const double begin = Seconds();
  ASSERT_THAT(driver_->CopyAsync(to.data(), from.data(), size, kD2H, out),
              IsOk());
  ASSERT_THAT(driver_->RecordEvent(event, out), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(in, event), IsOk());
  ASSERT_THAT(driver_->CopyAsync(to.data(), from.data(), size, kH2D, in),
              IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(in), IsOk());
  EXPECT_GE(Seconds() - begin, 0.98 * 0.4);
}

TEST_F(SimTest, ACopyWithoutALimitOnAnIdleStreamIsDoneAtOnce) {
  if (PoisonsBuffers())
    GTEST_SKIP() << "with SLUICE_POISON every copy arrives late";
  ASSERT_THAT(node_->SetLinkSpeed("own", 0, 0), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  std::vector<std::byte> from(1 << 20, std::byte{1}), to(1 << 20);
  ASSERT_THAT(driver_->CopyAsync(to.data(), from.data(), MiB(1), kH2D, stream),
              IsOk());
  EXPECT_EQ(to, from);
  ASSERT_THAT(driver_->RecordEvent(event, stream), IsOk());
  EXPECT_TRUE(driver_->QueryEvent(event).value());
}

// CopyAsync returns before its copy ends. A copy on any other stream that waits
// for the first copy's event waits, too, even if it takes no time itself.
TEST_F(SimTest, ACopyThatTakesTimeDoesNotBlockItsCaller) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 1e6, 0), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream slow,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream behind,
                              driver_->CreateStream(DeviceIndex(0)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event copied, driver_->CreateEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  const std::vector<std::byte> from(200'000, std::byte{1});
  // A round shows nothing if this thread got no CPU until the copies ended.
  bool seen = false;
  for (int i = 0; i < 20 && !seen; ++i) {
    std::vector<std::byte> to(200'000);
    std::byte last = {};
    ASSERT_THAT(
        driver_->CopyAsync(to.data(), from.data(), Bytes(200'000), kH2D, slow),
        IsOk());
    ASSERT_THAT(driver_->RecordEvent(copied, slow), IsOk());
    ASSERT_THAT(driver_->StreamWaitEvent(behind, copied), IsOk());
    ASSERT_THAT(driver_->CopyAsync(&last, &to.back(), Bytes(1), kH2D, behind),
                IsOk());
    ASSERT_THAT(driver_->RecordEvent(event, behind), IsOk());
    const bool done = driver_->QueryEvent(event).value();
    seen = !driver_->QueryEvent(copied).value();
    if (seen) {
      EXPECT_FALSE(done);
    }
    EXPECT_THAT(driver_->SynchronizeEvent(event), IsOk());
    EXPECT_EQ(last, std::byte{1});
  }
  EXPECT_TRUE(seen);
}

// An idle stream executes small copies at once, in the caller's thread, and
// large ones in the stream's own thread. Two threads enqueue in turn.
TEST_F(SimTest, CopiesOfOneStreamStayInOrderAcrossThreads) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 0, 0), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(2)));
  const std::vector<std::byte> one(2 << 20, std::byte{1});
  const std::vector<std::byte> two(2 << 20, std::byte{2});
  std::vector<std::byte> to(2 << 20);
  for (int round = 0; round < 200; ++round) {
    const Bytes first = round % 3 == 0 ? MiB(2) : KiB(4);
    const Bytes second = round % 2 == 0 ? MiB(2) : KiB(4);
    std::jthread([&] {
      EXPECT_THAT(
          driver_->CopyAsync(to.data(), one.data(), first, kH2D, stream),
          IsOk());
    }).join();
    EXPECT_THAT(driver_->CopyAsync(to.data(), two.data(), second, kH2D, stream),
                IsOk());
    ASSERT_THAT(driver_->SynchronizeStream(stream), IsOk());
    ASSERT_EQ(to[0], std::byte{2});
    ASSERT_EQ(to[second.size() - 1], std::byte{2});
    ASSERT_EQ(to[first.size() - 1], std::byte(first > second ? 1 : 2));
  }
}

TEST_F(SimTest, EveryLaterCallReportsAFailedCopyAndNoneBlocks) {
  std::byte from[2] = {std::byte{1}, std::byte{2}}, to[2] = {};
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(0)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  // The slow link delays the copies, so all calls are made before one fails.
  ASSERT_THAT(node_->SetLinkSpeed("shared", 1, 0), IsOk());
  ASSERT_THAT(node_->FailCall("Copy", 2), IsOk());
  for (int i : {0, 1}) {
    ASSERT_THAT(driver_->CopyAsync(to + i, from + i, Bytes(1), kH2D, stream),
                IsOk());
  }
  ASSERT_THAT(driver_->RecordEvent(event, stream), IsOk());
  EXPECT_THAT(driver_->SynchronizeEvent(event), IsOk());
  const auto failed = StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("Copy: failure injected"));
  EXPECT_THAT(driver_->SynchronizeStream(stream), failed);
  EXPECT_THAT(driver_->RecordEvent(event, stream), failed);
  EXPECT_EQ(to[0], std::byte{1});
  EXPECT_EQ(to[1], std::byte{0});
  EXPECT_THAT(driver_->DestroyStream(stream), IsOk());
}

TEST_F(SimTest, AGpuLostDuringACopyEndsTheCopy) {
  ASSERT_THAT(node_->SetLinkSpeed("own", 1e6, 0), IsOk());
  std::vector<std::byte> from(10'000'000), to(10'000'000);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(2)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  ASSERT_THAT(driver_->CopyAsync(to.data(), from.data(), Bytes(10'000'000),
                                 kH2D, stream),
              IsOk());
  ASSERT_THAT(driver_->RecordEvent(event, stream), IsOk());
  ASSERT_THAT(node_->LoseGpu(DeviceIndex(2)), IsOk());
  const double begin = Seconds();
  // Without the loss the copy takes 10 s.
  EXPECT_THAT(driver_->SynchronizeEvent(event), IsOk());
  EXPECT_LE(Seconds() - begin, 2);
  EXPECT_THAT(driver_->SynchronizeStream(stream),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SimTest, NothingIsCopiedOrFilledWithoutAccess) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Memory memory,
                              driver_->Create(kGpu0, KiB(64)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Address address,
                              driver_->Reserve(KiB(128), kGpu0.kind));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(DeviceIndex(0)));
  std::vector<std::byte> from(128 << 10);
  const auto copy = [&](Bytes size) {
    return driver_->CopyAsync(address, from.data(), size, kH2D, stream);
  };
  const auto fill = [&](Bytes size) {
    return driver_->FillAsync(address, std::byte{1}, size, stream);
  };
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("not all mapped with access"));
  EXPECT_THAT(copy(KiB(64)), refused);
  EXPECT_THAT(fill(KiB(64)), refused);
  ASSERT_THAT(driver_->Map(address, KiB(64), memory), IsOk());
  EXPECT_THAT(copy(KiB(64)), refused);
  EXPECT_THAT(fill(KiB(64)), refused);
  ASSERT_THAT(driver_->SetAccess(address, KiB(64), DeviceIndex(0)), IsOk());
  EXPECT_THAT(copy(KiB(64)), IsOk());
  EXPECT_THAT(fill(KiB(64)), IsOk());
  EXPECT_THAT(copy(KiB(65)), refused);
  EXPECT_THAT(fill(KiB(65)), refused);
  EXPECT_THAT(driver_->SynchronizeStream(stream), IsOk());
}

TEST_F(SimTest, NativeStreamsAreUnimplemented) {
  const auto refused =
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("a simulated GPU"));
  EXPECT_THAT(driver_->NativeStream(driver_->ComputeStream(DeviceIndex(0))),
              refused);
  EXPECT_THAT(driver_->AdoptStream(DeviceIndex(0), nullptr), refused);
}

TEST_F(SimTest, KernelsAreUnimplemented) {
  EXPECT_THAT(
      driver_->LoadModule({}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CPU reference")));
}

}  // namespace
}  // namespace sluice::device
