#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/status.h"
#include "tests/conformance/fixture.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

// The rounding error of cuda's times, which are floats of milliseconds.
constexpr absl::Duration kClockError = absl::Microseconds(100);

class StreamConformance : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto memory = Mapped::Create(driver_.get(), kOnGpu, Size(kOnGpu));
    ASSERT_THAT(memory, IsOk());
    memory_ = *std::move(memory);
    first_ = *driver_->CreateStream(kGpu);
    second_ = *driver_->CreateStream(kGpu);
    event_ = *driver_->CreateEvent();
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    EXPECT_THAT(driver_->SynchronizeStream(first_), IsOk());
    EXPECT_THAT(driver_->SynchronizeStream(second_), IsOk());
    memory_.reset();
    EXPECT_THAT(driver_->DestroyEvent(event_), IsOk());
    EXPECT_THAT(driver_->DestroyStream(first_), IsOk());
    EXPECT_THAT(driver_->DestroyStream(second_), IsOk());
  }

  // Returns pinned memory. On cuda a copy of unpinned memory is synchronous, so
  // a test of order would prove nothing.
  std::unique_ptr<Mapped> Pinned() {
    auto memory = Mapped::Create(driver_.get(), kOnHost, HostSize());
    SLUICE_CHECK_OK(memory.status());
    return *std::move(memory);
  }
  // Returns pinned memory that is filled with the pattern of `seed`.
  std::unique_ptr<Mapped> Pinned(int seed) {
    auto memory = Pinned();
    const Content content = Pattern(memory_->size(), seed);
    std::copy(content.begin(), content.end(), memory->address());
    return memory;
  }
  bool Same(const Mapped& a, const Mapped& b) const {
    return std::memcmp(a.address(), b.address(), memory_->size().size()) == 0;
  }
  Bytes HostSize() {
    return RoundUp(memory_->size(), *driver_->Granularity(kOnHost));
  }

  absl::Status CopyIn(const Mapped& from, Stream stream) {
    return driver_->CopyAsync(memory_->address(), from.address(),
                              memory_->size(), kH2D, stream);
  }
  absl::Status CopyOut(const Mapped& to, Stream stream) {
    return driver_->CopyAsync(to.address(), memory_->address(), memory_->size(),
                              kD2H, stream);
  }

  std::unique_ptr<Mapped> memory_;
  Stream first_, second_;
  Event event_;
};
INSTANTIATE_TEST_SUITE_P(Drivers, StreamConformance,
                         ::testing::Values("sim", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(StreamConformance, CopiesOfAStreamRunInOrder) {
  std::vector<std::unique_ptr<Mapped>> in, out;
  for (int i = 0; i < 2; ++i) {
    in.push_back(Pinned(i));
    out.push_back(Pinned());
  }
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_THAT(CopyIn(*in[i], first_), IsOk());
    ASSERT_THAT(CopyOut(*out[i], first_), IsOk());
  }
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(Same(*in[i], *out[i]));
}

TEST_P(StreamConformance, AStreamWaitsForAnEventOfAnotherStream) {
  const auto in = Pinned(1);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(second_, event_), IsOk());
  ASSERT_THAT(CopyOut(*out, second_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(second_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
}

TEST_P(StreamConformance, AnEventThatWasNeverRecordedIsComplete) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const bool complete, driver_->QueryEvent(event_));
  EXPECT_TRUE(complete);
  EXPECT_THAT(driver_->StreamWaitEvent(first_, event_), IsOk());
  EXPECT_THAT(driver_->SynchronizeEvent(event_), IsOk());
  EXPECT_THAT(driver_->SynchronizeStream(first_), IsOk());
}

TEST_P(StreamConformance, AnEventCompletesAfterTheWorkBeforeIt) {
  const auto in = Pinned(2);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(CopyOut(*out, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeEvent(event_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
  SLUICE_ASSERT_OK_AND_ASSIGN(const bool complete, driver_->QueryEvent(event_));
  EXPECT_TRUE(complete);
}

// A wait refers to the recording that existed when the wait was enqueued. The
// later recording, on an idle stream, must not let the wait pass early.
TEST_P(StreamConformance, ALaterRecordingDoesNotChangeAWait) {
  const auto in = Pinned(3);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(second_, event_), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream idle, driver_->CreateStream(kGpu));
  ASSERT_THAT(driver_->RecordEvent(event_, idle), IsOk());
  ASSERT_THAT(CopyOut(*out, second_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(second_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
  EXPECT_THAT(driver_->DestroyStream(idle), IsOk());
}

TEST_P(StreamConformance, ComputeAndCopyStreamsWaitForEachOther) {
  const Stream compute = driver_->ComputeStream(kGpu);
  const auto in = Pinned(4);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(compute, event_), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event computed, driver_->CreateEvent());
  ASSERT_THAT(driver_->RecordEvent(computed, compute), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(second_, computed), IsOk());
  ASSERT_THAT(CopyOut(*out, second_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(second_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
  EXPECT_THAT(driver_->DestroyEvent(computed), IsOk());
}

// Copies host memory to each GPU in turn and back. Each GPU's stream waits for
// the event of the GPU before it.
TEST_P(StreamConformance, EveryGpuCopiesAndWaitsForTheOthers) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver_->Devices());
  std::vector<std::unique_ptr<Mapped>> host, on_gpus;
  host.push_back(Pinned(8));
  std::vector<Stream> streams;
  for (const DeviceInfo& gpu : devices) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        on_gpus.emplace_back(),
        Mapped::Create(driver_.get(), Placement::Gpu(gpu.index),
                       memory_->size()));
    host.push_back(Pinned());
    SLUICE_ASSERT_OK_AND_ASSIGN(streams.emplace_back(),
                                driver_->CreateStream(gpu.index));
    for (const auto& memory : {host.end() - 2, host.end() - 1}) {
      ASSERT_THAT(driver_->SetAccess((*memory)->address(), (*memory)->size(),
                                     gpu.index),
                  IsOk());
    }
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    ASSERT_THAT(driver_->StreamWaitEvent(streams[i], event_), IsOk());
    ASSERT_THAT(driver_->CopyAsync(on_gpus[i]->address(), host[i]->address(),
                                   memory_->size(), kH2D, streams[i]),
                IsOk());
    ASSERT_THAT(
        driver_->CopyAsync(host[i + 1]->address(), on_gpus[i]->address(),
                           memory_->size(), kD2H, streams[i]),
        IsOk());
    ASSERT_THAT(driver_->RecordEvent(event_, streams[i]), IsOk());
  }
  ASSERT_THAT(driver_->SynchronizeEvent(event_), IsOk());
  EXPECT_TRUE(Same(*host.front(), *host.back()));
  for (const Stream stream : streams) {
    EXPECT_THAT(driver_->DestroyStream(stream), IsOk());
  }
}

TEST_P(StreamConformance, TheDefaultStreamIsAdoptedOnCuda) {
  const auto adopted = driver_->AdoptStream(kGpu, nullptr);
  if (driver_->name() == "sim") {
    EXPECT_THAT(adopted, StatusIs(absl::StatusCode::kUnimplemented));
    return;
  }
  ASSERT_THAT(adopted, IsOk());
  EXPECT_EQ(*driver_->AdoptStream(kGpu, nullptr), *adopted);
  const auto in = Pinned(7);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(*adopted, event_), IsOk());
  ASSERT_THAT(CopyOut(*out, *adopted), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(*adopted), IsOk());
  EXPECT_TRUE(Same(*in, *out));
  EXPECT_THAT(driver_->DestroyStream(*adopted),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(StreamConformance, ADestroyedStreamFinishesItsWork) {
  const auto in = Pinned(5);
  const auto out = Pinned();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream, driver_->CreateStream(kGpu));
  ASSERT_THAT(CopyIn(*in, stream), IsOk());
  ASSERT_THAT(CopyOut(*out, stream), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, stream), IsOk());
  ASSERT_THAT(driver_->DestroyStream(stream), IsOk());
  ASSERT_THAT(driver_->SynchronizeEvent(event_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
}

TEST_P(StreamConformance, AStreamStillWaitsForADestroyedEvent) {
  const auto in = Pinned(6);
  const auto out = Pinned();
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event event, driver_->CreateEvent());
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event, first_), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(second_, event), IsOk());
  ASSERT_THAT(driver_->DestroyEvent(event), IsOk());
  ASSERT_THAT(CopyOut(*out, second_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(second_), IsOk());
  EXPECT_TRUE(Same(*in, *out));
}

TEST_P(StreamConformance, CopiesAndHostWaitsAreCounted) {
  const CallCounters before = driver_->counters();
  const auto in = Pinned(7);
  const auto out = Pinned();
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(CopyOut(*out, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeEvent(event_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  const CallCounters after = driver_->counters();
  EXPECT_EQ(after.copies, before.copies + 2);
  EXPECT_EQ(after.copied_h2d, before.copied_h2d + memory_->size());
  EXPECT_EQ(after.copied_d2h, before.copied_d2h + memory_->size());
  EXPECT_EQ(after.event_synchronize, before.event_synchronize + 1);
  EXPECT_EQ(after.stream_synchronize, before.stream_synchronize + 1);
}

TEST_P(StreamConformance, FillsAndCopiesOfAStreamRunInOrder) {
  const auto in = Pinned(8);
  const auto out = Pinned();
  const int64_t size = memory_->size().count();
  ASSERT_THAT(driver_->FillAsync(memory_->address(), std::byte{1},
                                 memory_->size(), first_),
              IsOk());
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->FillAsync(memory_->address() + size / 4, std::byte{0xff},
                                 memory_->size() / 2, first_),
              IsOk());
  ASSERT_THAT(CopyOut(*out, first_), IsOk());
  ASSERT_THAT(driver_->FillAsync(memory_->address(), std::byte{2},
                                 memory_->size(), first_),
              IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  std::fill_n(in->address() + size / 4, size / 2, std::byte{0xff});
  EXPECT_TRUE(Same(*in, *out));
}

TEST_P(StreamConformance, HostMemoryIsFilledToo) {
  const auto host = Pinned(9);
  ASSERT_THAT(
      driver_->FillAsync(host->address(), std::byte{3}, host->size(), first_),
      IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  EXPECT_EQ(std::count(host->address(), host->address() + host->size().count(),
                       std::byte{3}),
            host->size().count());
}

// Events of the compute stream and of a copy stream use the same clock.
TEST_P(StreamConformance, TimedEventsMeasureTheTimeBetweenThem) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event before, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event between, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event after, driver_->CreateTimedEvent());
  const auto in = Pinned(9);
  const Stream compute = driver_->ComputeStream(kGpu);
  const absl::Time began = absl::Now();
  ASSERT_THAT(driver_->RecordEvent(before, compute), IsOk());
  ASSERT_THAT(driver_->StreamWaitEvent(first_, before), IsOk());
  ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(between, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  absl::SleepFor(absl::Milliseconds(5));
  ASSERT_THAT(driver_->RecordEvent(after, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  const absl::Duration passed = absl::Now() - began;
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto copy,
                              driver_->ElapsedTime(before, between));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto sleep,
                              driver_->ElapsedTime(between, after));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto all,
                              driver_->ElapsedTime(before, after));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto back,
                              driver_->ElapsedTime(after, before));
  ASSERT_TRUE(copy && sleep && all && back);
  EXPECT_GT(*copy, absl::ZeroDuration());
  EXPECT_GE(*sleep, absl::Milliseconds(5) - kClockError);
  EXPECT_LE(absl::AbsDuration(*all - (*copy + *sleep)), kClockError);
  EXPECT_LE(absl::AbsDuration(*all + *back), kClockError);
  EXPECT_LE(*all, passed + kClockError);
  for (const Event event : {before, between, after}) {
    EXPECT_THAT(driver_->DestroyEvent(event), IsOk());
  }
}

TEST_P(StreamConformance, ElapsedTimeHasNoValueUntilBothEventsAreReached) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event from, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event to, driver_->CreateTimedEvent());
  const auto in = Pinned(10);
  ASSERT_THAT(driver_->RecordEvent(from, first_), IsOk());
  for (int i = 0; i < 8; ++i) ASSERT_THAT(CopyIn(*in, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(to, first_), IsOk());
  const CallCounters before = driver_->counters();
  absl::StatusOr<std::optional<absl::Duration>> time;
  do {
    time = driver_->ElapsedTime(from, to);
    ASSERT_THAT(time, IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const bool reached, driver_->QueryEvent(to));
    if (time->has_value()) {
      EXPECT_TRUE(reached);
    }
  } while (!time->has_value());
  EXPECT_GE(**time, absl::ZeroDuration());
  const CallCounters after = driver_->counters();
  EXPECT_EQ(after.event_synchronize, before.event_synchronize);
  EXPECT_EQ(after.stream_synchronize, before.stream_synchronize);
  EXPECT_THAT(driver_->DestroyEvent(from), IsOk());
  EXPECT_THAT(driver_->DestroyEvent(to), IsOk());
}

TEST_P(StreamConformance, OnlyRecordedEventsWithTimingHaveATime) {
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event timed, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event never, driver_->CreateTimedEvent());
  ASSERT_THAT(driver_->RecordEvent(timed, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(event_, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeStream(first_), IsOk());
  for (const auto& [other, why] :
       {std::pair{event_, "without timing"}, std::pair{never, "never recorded"},
        std::pair{Event(4711), "no event 4711"}}) {
    EXPECT_THAT(driver_->ElapsedTime(timed, other),
                StatusIs(kBad, ::testing::HasSubstr(why)));
    EXPECT_THAT(driver_->ElapsedTime(other, timed),
                StatusIs(kBad, ::testing::HasSubstr(why)));
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto none,
                              driver_->ElapsedTime(timed, timed));
  EXPECT_EQ(none, std::optional(absl::ZeroDuration()));
  for (const Event event : {timed, never}) {
    EXPECT_THAT(driver_->DestroyEvent(event), IsOk());
    EXPECT_THAT(driver_->DestroyEvent(event), StatusIs(kBad));
  }
}

TEST_P(StreamConformance, EventsOfTwoGpusHaveNoTimeBetweenThem) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto devices, driver_->Devices());
  if (devices.size() < 2) return;  // fake_cuda_conformance_2 has two GPUs
  const DeviceIndex other = devices[1].index;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event here, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Event there, driver_->CreateTimedEvent());
  SLUICE_ASSERT_OK_AND_ASSIGN(const Stream stream,
                              driver_->CreateStream(other));
  ASSERT_THAT(driver_->RecordEvent(here, first_), IsOk());
  ASSERT_THAT(driver_->RecordEvent(there, stream), IsOk());
  EXPECT_THAT(driver_->ElapsedTime(here, there),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // The new recording moves `there` to the GPU of `first_`.
  ASSERT_THAT(driver_->RecordEvent(there, first_), IsOk());
  ASSERT_THAT(driver_->SynchronizeEvent(there), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto time,
                              driver_->ElapsedTime(here, there));
  EXPECT_TRUE(time.has_value());
  EXPECT_THAT(driver_->DestroyStream(stream), IsOk());
  EXPECT_THAT(driver_->DestroyEvent(here), IsOk());
  EXPECT_THAT(driver_->DestroyEvent(there), IsOk());
}

TEST_P(StreamConformance, AnEmptyFillPassesAndANegativeSizeIsRefused) {
  for (const auto& [to, size, code] :
       {std::tuple{memory_->address(), 0, absl::StatusCode::kOk},
        std::tuple{memory_->address(), -1, absl::StatusCode::kInvalidArgument},
        std::tuple{Address{}, 1, absl::StatusCode::kInvalidArgument}}) {
    EXPECT_EQ(driver_->FillAsync(to, std::byte{0}, Bytes(size), first_).code(),
              code);
  }
}

TEST_P(StreamConformance, AnEmptyCopyPassesAndANegativeSizeIsRefused) {
  EXPECT_THAT(driver_->CopyAsync(memory_->address(), memory_->address(),
                                 Bytes(0), kH2D, first_),
              IsOk());
  EXPECT_THAT(driver_->CopyAsync(memory_->address(), memory_->address(),
                                 Bytes(-1), kH2D, first_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sluice::device
