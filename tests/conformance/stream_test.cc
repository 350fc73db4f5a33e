#include <algorithm>
#include <cstring>
#include <tuple>

#include "proto/base/status.h"
#include "tests/conformance/fixture.h"

namespace sluice::device {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

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

  // Pinned memory: a copy of other memory is not asynchronous on cuda, and a
  // test of order would prove nothing.
  std::unique_ptr<Mapped> Pinned() {
    auto memory = Mapped::Create(driver_.get(), kOnHost, HostSize());
    SLUICE_CHECK_OK(memory.status());
    return *std::move(memory);
  }
  // With the pattern of `seed`, as far as the copies go.
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

TEST_P(StreamConformance, AStreamWaitsForAnothersEvent) {
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

TEST_P(StreamConformance, AnEventCompletesWithWhatWasBeforeIt) {
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

// A wait means the recording that was there when it was enqueued; another one
// later on a slow stream must not hold it up, nor let it pass early.
TEST_P(StreamConformance, AWaitKeepsTheRecordingItSaw) {
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

TEST_P(StreamConformance, TheComputeStreamWaitsAndIsWaitedFor) {
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

// Host memory that every GPU reaches, copied through each in turn; an event
// made of one GPU's stream holds the next one's back.
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

TEST_P(StreamConformance, ADefaultStreamIsAdoptedWhereThereIsOne) {
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

TEST_P(StreamConformance, ADestroyedEventStillHoldsItsWaiters) {
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

TEST_P(StreamConformance, AFillHasItsPlaceInTheOrderOfItsStream) {
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

TEST_P(StreamConformance, AFillOfNothingIsFineAndOfLessIsNot) {
  for (const auto& [to, size, code] :
       {std::tuple{memory_->address(), 0, absl::StatusCode::kOk},
        std::tuple{memory_->address(), -1, absl::StatusCode::kInvalidArgument},
        std::tuple{Address{}, 1, absl::StatusCode::kInvalidArgument}}) {
    EXPECT_EQ(driver_->FillAsync(to, std::byte{0}, Bytes(size), first_).code(),
              code);
  }
}

TEST_P(StreamConformance, ACopyOfNothingIsFineAndOfLessIsNot) {
  EXPECT_THAT(driver_->CopyAsync(memory_->address(), memory_->address(),
                                 Bytes(0), kH2D, first_),
              IsOk());
  EXPECT_THAT(driver_->CopyAsync(memory_->address(), memory_->address(),
                                 Bytes(-1), kH2D, first_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sluice::device
