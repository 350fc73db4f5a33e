// Tests the order of copies, as races between copies corrupt gradients
// silently.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "proto/base/poison.h"
#include "tests/client/engine_fixture.h"
#include "tests/support/sanitizer.h"

namespace sluice::client {
namespace {

using ::sluice::testing::kThreadSanitizer;

using CopyEngineOrderTest = EngineTest;

TEST_F(CopyEngineOrderTest, ACopyInWaitsForTheTicketOfACopyOut) {
  Start(/*speed=*/200e6);
  for (int round = 0; round < 20; ++round) {
    std::memset(gpu_, round, KiB(256).size());
    const Ticket made = engine_->MarkCompute();
    const Ticket out = engine_->Enqueue(ToHost(Bytes(0), KiB(256), {made}));
    // Copies the bytes back to another place, after the copy out.
    const Ticket in = engine_->Enqueue(
        {.pieces = {{gpu_ + MiB(4).count(), host_, KiB(256)}}, .after = {out}});
    ASSERT_THAT(engine_->Wait(in), IsOk());
    ASSERT_EQ(std::memcmp(gpu_, gpu_ + MiB(4).count(), KiB(256).size()), 0)
        << "round " << round;
  }
}

TEST_F(CopyEngineOrderTest, WithoutATicketACopyInReadsOldBytes) {
  // Proves that the test above can fail: without the ticket H2D overtakes D2H.
  // The CTest entry `planted_race` expects ThreadSanitizer to find this race.
  if (kThreadSanitizer && getenv("SLUICE_PLANTED_RACE") == nullptr) {
    GTEST_SKIP() << "this test races on purpose";
  }
  Start(/*speed=*/0);
  ASSERT_THAT(node_->SetLinkSpeed("pcie0", 0, 1e6), IsOk());
  std::memset(gpu_, 5, MiB(1).size());
  std::memset(host_, 1, MiB(1).size());
  engine_->Enqueue(ToHost(Bytes(0), MiB(1)));
  const Ticket in =
      engine_->Enqueue({.pieces = {{gpu_ + MiB(4).count(),
                                    host_ + MiB(1).count() - 64, Bytes(64)}}});
  ASSERT_THAT(engine_->Wait(in), IsOk());
  EXPECT_NE(gpu_[MiB(4).count()], std::byte{5});
  ASSERT_THAT(engine_->Drain(), IsOk());
}

// A chunk loop with `kSlots` staging slots on the GPU and chunks in host
// memory. Each visit copies a chunk in, compares and changes its bytes, and
// copies it out.
class ChunkLoop {
 public:
  ChunkLoop(CopyEngine* engine, std::byte* gpu, std::byte* host, uint32_t seed)
      : engine_(engine), gpu_(gpu), host_(host), random_(seed) {
    for (int64_t i = 0; i < kChunks * kSize; ++i) host_[i] = std::byte(i);
    for (int64_t c = 0; c < kChunks; ++c) {
      expected_[c].assign(host_ + c * kSize, host_ + (c + 1) * kSize);
    }
  }

  void Visit() {
    const int64_t chunk = Pick(kChunks), slot = Pick(kSlots);
    std::byte* buffer = gpu_ + slot * kSize;
    // The copy in waits for the last copies out of this slot and of this chunk.
    const Ticket in = engine_->Enqueue(
        {.pieces = {{buffer, host_ + chunk * kSize, Bytes(kSize)}},
         .after = {slot_free_[slot], chunk_home_[chunk]},
         .label = "in"});
    ASSERT_THAT(engine_->Wait(in), IsOk());
    ASSERT_EQ(std::memcmp(buffer, expected_[chunk].data(), kSize), 0)
        << "chunk " << chunk << " in slot " << slot;
    for (int64_t i = 0; i < kSize; ++i) {
      buffer[i] = expected_[chunk][i] = std::byte(int(buffer[i]) * 3 + 1);
    }
    Jitter();
    const Ticket out = engine_->Enqueue(
        {.direction = CopyDirection::kDeviceToHost,
         .pieces = {{host_ + chunk * kSize, buffer, Bytes(kSize)}},
         .after = {engine_->MarkCompute()},
         .label = "out"});
    slot_free_[slot] = out;
    chunk_home_[chunk] = out;
  }

  void ExpectHome() {
    ASSERT_THAT(engine_->Drain(), IsOk());
    for (int64_t c = 0; c < kChunks; ++c) {
      EXPECT_EQ(std::memcmp(host_ + c * kSize, expected_[c].data(), kSize), 0);
    }
  }

 private:
  static constexpr int64_t kChunks = 6, kSlots = 2, kSize = 40'000;

  int64_t Pick(int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(random_);
  }
  void Jitter() {
    std::this_thread::sleep_for(std::chrono::microseconds(Pick(300)));
  }

  CopyEngine* engine_;
  std::byte *gpu_, *host_;
  std::mt19937 random_;
  std::vector<std::byte> expected_[kChunks];
  Ticket slot_free_[kSlots], chunk_home_[kChunks];
};

class ChunkLoopTest : public EngineTest,
                      public ::testing::WithParamInterface<uint32_t> {};

TEST_P(ChunkLoopTest, ComputeReadsOnlyTheLatestBytes) {
  // Slices are smaller than chunks. The link's speed changes at random.
  Start(/*speed=*/100e6, {.slice = Bytes(7'000)});
  std::mt19937 random(GetParam());
  std::uniform_real_distribution<double> speed(20e6, 2e9);
  ChunkLoop loop(engine_.get(), gpu_, host_, GetParam());
  for (int i = 0; i < 150 && !HasFatalFailure(); ++i) {
    if (i % 10 == 0) {
      ASSERT_THAT(node_->SetLinkSpeed("pcie0", speed(random), speed(random)),
                  IsOk());
    }
    loop.Visit();
  }
  loop.ExpectHome();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChunkLoopTest, ::testing::Values(1, 2, 3, 4));

TEST_F(CopyEngineOrderTest, BytesNotYetArrivedReadAsNan) {
  if (!PoisonsBuffers()) GTEST_SKIP() << "SLUICE_POISON is not set";
  if (kThreadSanitizer)
    GTEST_SKIP() << "this test reads bytes while a copy writes them";
  Start(/*speed=*/1e6);
  std::memset(gpu_, 0, MiB(1).size());
  const Ticket in = engine_->Enqueue(ToGpu(Bytes(0), MiB(1)));
  while (gpu_[MiB(1).count() - 1] != std::byte{0xff} && !in.done()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(in.done()) << "the copy ended before poison was seen";
  ASSERT_THAT(node_->SetLinkSpeed("pcie0", 0, 0), IsOk());
  ASSERT_THAT(engine_->Wait(in), IsOk());
}

}  // namespace
}  // namespace sluice::client
