#include "client/copy/copy_engine.h"

#include <cstring>
#include <thread>

#include "tests/client/engine_fixture.h"
#include "tests/support/fake_clock.h"

namespace sluice::client {
namespace {

using ::testing::HasSubstr;

using CopyEngineTest = EngineTest;

TEST_F(CopyEngineTest, BytesHaveArrivedAfterTheWaitForTheirTicket) {
  Start();
  std::memset(host_, 7, MiB(8).size());
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(8)));
  ASSERT_THAT(engine_->Wait(ticket), IsOk());
  EXPECT_TRUE(ticket.done());
  EXPECT_EQ(std::memcmp(gpu_, host_, MiB(8).size()), 0);
  EXPECT_EQ(engine_->stats().h2d, MiB(8));
  EXPECT_EQ(engine_->stats().d2h, Bytes(0));
}

TEST_F(CopyEngineTest, ADefaultTicketIsReached) {
  Start();
  EXPECT_TRUE(Ticket().done());
  EXPECT_THAT(engine_->Wait(Ticket()), IsOk());
}

TEST_F(CopyEngineTest, AnEmptyRequestIsReachedAfterItsTickets) {
  Start(/*speed=*/100e6);
  const Ticket slow = engine_->Enqueue(ToHost(Bytes(0), MiB(1)));
  const Ticket join = engine_->Enqueue(
      {.direction = CopyDirection::kHostToDevice, .after = {slow}});
  ASSERT_THAT(engine_->Wait(join), IsOk());
  EXPECT_TRUE(slow.done());
}

TEST_F(CopyEngineTest, ARequestCopiesAllItsPieces) {
  Start(0, {.slice = KiB(100)});
  for (int i = 0; i < MiB(8).count(); ++i) host_[i] = std::byte(i * 31 >> 8);
  CopyRequest request;
  for (int64_t at = 0; at < MiB(8).count(); at += 77'777) {
    const int64_t size = std::min<int64_t>(77'777, MiB(8).count() - at);
    request.pieces.push_back({gpu_ + at, host_ + at, Bytes(size)});
  }
  ASSERT_THAT(engine_->Wait(engine_->Enqueue(std::move(request))), IsOk());
  EXPECT_EQ(std::memcmp(gpu_, host_, MiB(8).size()), 0);
}

TEST_F(CopyEngineTest, AWaitCountsAsStallAndCallsNoSynchronize) {
  Start(/*speed=*/1e6);
  const auto before = driver_->counters();
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  ASSERT_THAT(engine_->Wait(ticket), IsOk());
  EXPECT_GT(engine_->stats().stall, absl::Milliseconds(10));
  EXPECT_EQ(driver_->counters().stream_synchronize, before.stream_synchronize);
  EXPECT_EQ(driver_->counters().event_synchronize, before.event_synchronize);
}

TEST_F(CopyEngineTest, ACopyOfOneDirectionDoesNotWaitForTheOther) {
  Start();
  // A copy in takes a second, a copy out no time.
  ASSERT_THAT(node_->SetLinkSpeed("pcie0", 1e6, 0), IsOk());
  const Ticket in = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  const Ticket out = engine_->Enqueue(ToHost(MiB(4), MiB(1)));
  ASSERT_THAT(engine_->Wait(out), IsOk());
  EXPECT_FALSE(in.done());
  ASSERT_THAT(engine_->Wait(in), IsOk());
}

TEST_F(CopyEngineTest, EveryWaitAfterAFailedCopyReturnsItsError) {
  Start();
  ASSERT_THAT(node_->FailCall("CopyAsync", 2), IsOk());
  const Ticket good = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  ASSERT_THAT(engine_->Drain(), IsOk());
  const Ticket bad = engine_->Enqueue(ToGpu(MiB(1), MiB(1)));
  const Ticket later = engine_->Enqueue(ToHost(MiB(2), MiB(1)));
  EXPECT_THAT(engine_->Wait(bad),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(engine_->Wait(later),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(engine_->Wait(Ticket()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(engine_->Drain(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(CopyEngineTest, AWaitFailsIfItsCopyFailsOnTheStream) {
  Start();
  ASSERT_THAT(node_->FailCall("Copy", 1), IsOk());
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  EXPECT_FALSE(engine_->Wait(ticket).ok());
}

TEST_F(CopyEngineTest, AWaitThatAnEarlierWaitImpliesCallsNoDriver) {
  Start();
  const Ticket first = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  const Ticket last = engine_->Enqueue(ToGpu(MiB(1), MiB(1)));
  const Ticket mark = engine_->MarkCompute();
  ASSERT_THAT(engine_->Wait(last), IsOk());
  ASSERT_THAT(
      engine_->Wait(engine_->Enqueue(ToHost(MiB(4), MiB(1), {mark, last}))),
      IsOk());
  ASSERT_THAT(node_->FailCall("StreamWaitEvent", 1), IsOk());
  EXPECT_THAT(engine_->Wait(first), IsOk());
  EXPECT_THAT(engine_->Wait(mark), IsOk());
  const Ticket out = engine_->Enqueue(ToHost(MiB(5), MiB(1), {first}));
  EXPECT_THAT(engine_->Drain(), IsOk());
  EXPECT_FALSE(engine_->Wait(out).ok()) << "no wait implies this one";
}

TEST_F(CopyEngineTest, NothingIsCopiedAfterAFailure) {
  Start();
  std::memset(host_, 1, MiB(8).size());
  std::memset(gpu_, 0, MiB(8).size());
  ASSERT_THAT(node_->FailCall("CopyAsync", 1), IsOk());
  engine_->Enqueue(ToHost(Bytes(0), MiB(1)));
  EXPECT_FALSE(engine_->Drain().ok());
  const std::byte before = host_[MiB(4).count()];
  engine_->Enqueue(ToHost(MiB(4), MiB(1)));
  EXPECT_FALSE(engine_->Drain().ok());
  EXPECT_EQ(host_[MiB(4).count()], before);
}

TEST_F(CopyEngineTest, WaitsFailAfterTheGpuIsLost) {
  Start();
  ASSERT_THAT(node_->LoseGpu(DeviceIndex(0)), IsOk());
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  EXPECT_THAT(engine_->Wait(ticket), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(engine_->Wait(engine_->MarkCompute()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CopyEngineTest, ABadPieceIsRefusedWithItsLabel) {
  Start();
  CopyRequest request = ToGpu(Bytes(0), Bytes(-1));
  request.label = "k of chunk 3";
  EXPECT_THAT(
      engine_->Wait(engine_->Enqueue(request)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("k of chunk 3")));
}

TEST_F(CopyEngineTest, TicketsOutliveTheEngine) {
  Start(/*speed=*/50e6);
  std::memset(host_, 9, MiB(1).size());
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  engine_.reset();  // waits for the copy
  EXPECT_TRUE(ticket.done());
  EXPECT_EQ(std::memcmp(gpu_, host_, MiB(1).size()), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(engine_,
                              CopyEngine::Start({.driver = driver_.get()}));
  EXPECT_THAT(engine_->Wait(ticket), IsOk());
}

TEST_F(CopyEngineTest, WithoutAGateEnqueueIssuesCopiesAtOnce) {
  Start(/*speed=*/50e3);
  const uint64_t before = driver_->counters().copies;
  const Ticket in = engine_->Enqueue(ToGpu(Bytes(0), KiB(64)));
  EXPECT_EQ(driver_->counters().copies, before + 1);
  const Ticket out = engine_->Enqueue(ToHost(MiB(1), KiB(64), {in}));
  EXPECT_EQ(driver_->counters().copies, before + 2);
  EXPECT_FALSE(in.done());
  ASSERT_THAT(engine_->Wait(out), IsOk());
  EXPECT_TRUE(in.done());
}

class GatedEngineTest : public EngineTest {
 protected:
  void Beat() {
    limits_.heartbeat_ns =
        static_cast<uint64_t>(absl::ToUnixNanos(clock_.Now()));
  }
  absl::Time DueTold() const {
    return absl::FromUnixNanos(
        static_cast<int64_t>(use_.slot.due_ns[kH2d].load()));
  }
  // Expects no booked bytes until `slow` is done, because all copies to the GPU
  // wait for `slow`.
  void ExpectNothingBooked(const Ticket& slow) const {
    while (true) {
      // Reads `booked` before slow.done(): once `slow` is done, more bytes are
      // booked.
      const uint64_t booked = use_.slot.used_bytes[kH2d].load();
      if (slow.done()) return;
      EXPECT_EQ(booked, 0u);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void AwaitBooked(Bytes size) const {
    while (use_.slot.used_bytes[kH2d].load() != size.size())
      std::this_thread::yield();
  }
  testing::FakeClock clock_;
  GrantLimits limits_ = {};
  GrantUse use_ = {};
  GrantGate gate_{&limits_, 0, &use_, &clock_};
};

TEST_F(GatedEngineTest, CopiesAreGrantedSliceBySlice) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 5 << 20;
  Start(0, {.gate = &gate_, .slice = MiB(1)});
  const Ticket ticket = engine_->Enqueue(ToGpu(Bytes(0), MiB(8)));
  while (engine_->stats().h2d < MiB(5)) std::this_thread::yield();
  // The engine books the next slice just before it waits.
  while (use_.slot.used_bytes[kH2d].load() < MiB(6).size()) {
    std::this_thread::yield();
  }
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(engine_->stats().h2d, MiB(5));
  EXPECT_FALSE(ticket.done());
  clock_.Advance(absl::Milliseconds(15));
  limits_.slots[0].limit_bytes[kH2d] = 8 << 20;
  ASSERT_THAT(engine_->Wait(ticket), IsOk());
  EXPECT_EQ(use_.slot.used_bytes[kH2d].load(), MiB(8).size());
  EXPECT_EQ(engine_->stats().grant_wait, absl::Milliseconds(15));
}

TEST_F(GatedEngineTest, NoRequestOvertakesOneThatWaitsForItsGrant) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 1 << 20;
  Start(0, {.gate = &gate_});
  const Ticket large = engine_->Enqueue(ToGpu(Bytes(0), MiB(2)));
  const Ticket small = engine_->Enqueue(ToGpu(MiB(2), KiB(1)));
  // A later copy of the other direction must not start either.
  const Ticket behind = engine_->Enqueue(ToHost(MiB(4), KiB(1), {small}));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(driver_->counters().copies, 0u);
  EXPECT_FALSE(small.done());
  limits_.slots[0].limit_bytes[kH2d] = 4 << 20;
  limits_.slots[0].limit_bytes[kD2h] = 4 << 20;
  ASSERT_THAT(engine_->Wait(behind), IsOk());
  EXPECT_TRUE(large.done());
  EXPECT_TRUE(small.done());
  EXPECT_EQ(use_.slot.used_bytes[kH2d].load(), (MiB(2) + KiB(1)).size());
}

TEST_F(GatedEngineTest, OnlyCopiesWithinTheGrantAreIssuedAhead) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 300 << 10;
  limits_.slots[0].limit_bytes[kD2h] = 8 << 20;
  Start(/*speed=*/10e6, {.gate = &gate_});
  std::memset(host_, 5, MiB(1).size());
  // This copy takes 105 ms at the link's speed. The limit has room for 75 of
  // the 100 copies that wait for `slow`.
  const Ticket slow = engine_->Enqueue(ToHost(MiB(4), MiB(1)));
  const uint64_t before = driver_->counters().copies;
  Ticket last;
  for (int i = 0; i < 100; ++i) {
    last = engine_->Enqueue(ToGpu(i * KiB(4), KiB(4), {slow}));
  }
  EXPECT_EQ(driver_->counters().copies, before + 75);
  ExpectNothingBooked(slow);
  AwaitBooked(301 * KiB(1) + 3 * KiB(1));
  EXPECT_FALSE(last.done());
  limits_.slots[0].limit_bytes[kH2d] = 8 << 20;
  ASSERT_THAT(engine_->Wait(last), IsOk());
  EXPECT_EQ(use_.slot.used_bytes[kH2d].load(), 100 * KiB(4).size());
  EXPECT_EQ(std::memcmp(gpu_, host_, 100 * KiB(4).size()), 0);
}

TEST_F(GatedEngineTest, WithoutAKnownLinkSpeedAllCopiesAreIssuedAhead) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 2 * kGrantFar;
  limits_.slots[0].limit_bytes[kD2h] = 2 * kGrantFar;
  Start(/*speed=*/10e6, {.gate = &gate_, .slice = KiB(256)});
  const Ticket slow = engine_->Enqueue(ToHost(MiB(4), MiB(1)));
  const uint64_t before = driver_->counters().copies;
  Ticket last;
  for (int i = 0; i < 100; ++i) {
    last = engine_->Enqueue(ToGpu(i * KiB(4), KiB(4), {slow}));
  }
  const Ticket large = engine_->Enqueue(ToGpu(MiB(1), MiB(1), {slow}));
  EXPECT_FALSE(slow.done());
  EXPECT_EQ(driver_->counters().copies, before + 100 + 4);
  EXPECT_EQ(use_.slot.used_bytes[kH2d].load(), (100 * KiB(4) + MiB(1)).size());
  ASSERT_THAT(engine_->Wait(large), IsOk());
  EXPECT_TRUE(last.done());
}

TEST_F(GatedEngineTest, ACopyBeyondTheLimitBooksSlicesOnceItCanStart) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 1 << 20;
  limits_.slots[0].limit_bytes[kD2h] = 8 << 20;
  Start(/*speed=*/10e6, {.gate = &gate_, .slice = KiB(256)});
  const Ticket slow = engine_->Enqueue(ToHost(MiB(4), KiB(256)));
  const Ticket sliced = engine_->Enqueue(ToGpu(Bytes(0), MiB(2), {slow}));
  ExpectNothingBooked(slow);
  AwaitBooked(KiB(1024 + 256));
  limits_.slots[0].limit_bytes[kH2d] = 8 << 20;
  ASSERT_THAT(engine_->Wait(sliced), IsOk());
  EXPECT_EQ(use_.slot.used_bytes[kH2d].load(), MiB(2).size());
}

TEST_F(GatedEngineTest, ACopyThatWaitsForAGrantPublishesItsDueTime) {
  Beat();
  limits_.slots[0].limit_bytes[kH2d] = 1 << 20;
  Start(0, {.gate = &gate_, .slice = MiB(1)});
  engine_->KnowSlack({{"in", absl::Milliseconds(3)}});
  const absl::Time due = clock_.Now() + absl::Milliseconds(3);
  // A copy that has its grant publishes nothing.
  ASSERT_THAT(engine_->Wait(engine_->Enqueue(ToGpu(Bytes(0), MiB(1)))), IsOk());
  EXPECT_EQ(use_.slot.due_ns[kH2d].load(), 0u);
  const Ticket waits = engine_->Enqueue(ToGpu(Bytes(0), MiB(2)));
  while (use_.slot.due_bytes[kH2d].load() == 0) std::this_thread::yield();
  EXPECT_EQ(use_.slot.due_bytes[kH2d].load(), MiB(3).size());
  EXPECT_EQ(DueTold(), due);
  limits_.slots[0].limit_bytes[kH2d] = 2 << 20;
  while (use_.slot.used_bytes[kH2d].load() < MiB(3).size())
    std::this_thread::yield();
  EXPECT_EQ(use_.slot.due_bytes[kH2d].load(), MiB(3).size())
      << "the second half of the copy still waits";
  limits_.slots[0].limit_bytes[kH2d] = 8 << 20;
  ASSERT_THAT(engine_->Wait(waits), IsOk());
  ASSERT_THAT(engine_->Drain(), IsOk());
  EXPECT_EQ(use_.slot.due_bytes[kH2d].load(), 0u);
}

// A copy's earliest start is the time of Enqueue if its tickets are reached by
// then, even behind another copy of its direction. Otherwise it is the time at
// which the copy is the next of its direction and its tickets are reached.
TEST_F(GatedEngineTest, ACopysDueTimeIsItsSlackAfterItsEarliestStart) {
  Beat();
  Start(0, {.gate = &gate_});
  engine_->KnowSlack({{"in", absl::Milliseconds(3)}});
  const absl::Time begin = clock_.Now();
  const Ticket first = engine_->Enqueue(ToGpu(Bytes(0), KiB(1)));
  engine_->Enqueue(ToGpu(KiB(1), KiB(1)));
  const Ticket out = engine_->Enqueue(ToHost(MiB(4), KiB(1)));
  engine_->Enqueue(ToGpu(KiB(2), KiB(1), {out}));
  const auto due_of = [&](Bytes end) {
    while (use_.slot.due_bytes[kH2d].load() != end.size())
      std::this_thread::yield();
    return DueTold() - begin;
  };
  EXPECT_EQ(due_of(KiB(1)), absl::Milliseconds(3));
  clock_.Advance(absl::Milliseconds(5));
  limits_.slots[0].limit_bytes[kH2d] = 1 << 10;
  EXPECT_EQ(due_of(KiB(2)), absl::Milliseconds(3));
  limits_.slots[0].limit_bytes[kD2h] = 1 << 10;
  while (!out.done()) std::this_thread::yield();
  limits_.slots[0].limit_bytes[kH2d] = 2 << 10;
  EXPECT_EQ(due_of(KiB(3)), absl::Milliseconds(8));
  limits_.slots[0].limit_bytes[kH2d] = 3 << 10;
  ASSERT_THAT(engine_->Drain(), IsOk());
}

TEST_F(GatedEngineTest, ACopyWithoutKnownSlackHasNoDueTime) {
  Beat();
  Start(0, {.gate = &gate_});
  engine_->KnowSlack({{"another", absl::Milliseconds(3)}});
  const Ticket waits = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  while (use_.slot.used_bytes[kH2d].load() == 0) std::this_thread::yield();
  EXPECT_EQ(use_.slot.due_bytes[kH2d].load(), 0u);
  limits_.slots[0].limit_bytes[kH2d] = 1 << 20;
  ASSERT_THAT(engine_->Wait(waits), IsOk());
}

TEST_F(GatedEngineTest, AnEndingEngineDoesNotWaitForGrants) {
  Beat();
  Start(0, {.gate = &gate_});
  std::memset(host_, 3, MiB(1).size());
  const Ticket in = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  engine_->Enqueue(ToHost(MiB(1), MiB(1), {in}));
  engine_.reset();
  EXPECT_EQ(std::memcmp(gpu_, host_, MiB(1).size()), 0);
}

TEST_F(CopyEngineTest, TheTimelineRecordsWhenCopiesRan) {
  Start(/*speed=*/100e6, {.record_timeline = true});
  engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  engine_->Enqueue(ToGpu(MiB(1), MiB(1)));
  engine_->Enqueue(ToHost(MiB(4), MiB(1)));
  ASSERT_THAT(engine_->Drain(), IsOk());
  const auto records = engine_->TakeTimeline();
  ASSERT_EQ(records.size(), 3u);
  const double one = 1048576 / 100e6;  // seconds of a copy at this speed
  double h2d_end = 0;
  for (const CopyRecord& record : records) {
    EXPECT_EQ(record.size, MiB(1));
    EXPECT_LE(record.issued_s, record.started_s);
    EXPECT_LE(record.started_s, record.finished_s);
    const bool in = record.direction == CopyDirection::kHostToDevice;
    EXPECT_GT(record.finished_s - record.issued_s, 0.9 * one) << record.label;
    if (!in) continue;
    EXPECT_GE(record.started_s, h2d_end - 1e-6)
        << "two copies to the GPU overlap";
    h2d_end = record.finished_s;
  }
  EXPECT_TRUE(engine_->TakeTimeline().empty());
}

// Guards against times taken by polling: a short copy would have no duration.
TEST_F(CopyEngineTest, ShortCopiesHaveADurationInTheTimeline) {
  Start(/*speed=*/1e9, {.record_timeline = true});
  constexpr Bytes kShort = KiB(64);  // takes 66 us
  for (int i = 0; i < 64; ++i) engine_->Enqueue(ToGpu(i * kShort, kShort));
  ASSERT_THAT(engine_->Drain(), IsOk());
  const auto records = engine_->TakeTimeline();
  ASSERT_EQ(records.size(), 64u);
  for (const CopyRecord& record : records) {
    EXPECT_GT(record.finished_s - record.started_s, 1e-6);
  }
}

}  // namespace
}  // namespace sluice::client
