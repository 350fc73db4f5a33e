#include <memory>
#include <optional>

#include "absl/time/clock.h"
#include "daemon/service/extents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

constexpr Bytes kArenaExtent = KiB(64);
constexpr int kHeld = 4;  // extents that fit into the node's host memory
constexpr NumaIndex kNuma = NumaIndex(0);
constexpr PoolId kHost = {PoolKind::kHost, 0};

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(device::CreateSimNode(directory_.path(),
                                      {.gpus = {{kArenaExtent, "link", kNuma}},
                                       .links = {{"link", 0, 0}},
                                       .host_memory = kArenaExtent * kHeld}),
                IsOk());
    auto driver = device::OpenSimDriver(directory_.path());
    ASSERT_THAT(driver, IsOk());
    driver_ = *std::move(driver);
  }

  // Returns an arena once it has `ready` extents ready.
  std::unique_ptr<Arena> Make(int ready) {
    auto arena = std::make_unique<Arena>(
        driver_.get(), Arena::Options{.nodes = {kNuma},
                                      .ready = kArenaExtent * ready,
                                      .extent = kArenaExtent});
    Expect(*arena, ready);
    return arena;
  }

  // Expects this number of ready extents within 10 s, and 20 ms later still.
  static void Expect(const Arena& arena, int extents) {
    const absl::Time end = absl::Now() + absl::Seconds(10);
    while (arena.ready(kNuma) != kArenaExtent * extents && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_EQ(arena.ready(kNuma), kArenaExtent * extents);
  }

  Bytes Used() {
    const auto use = driver_->Usage(device::Placement::Host(kNuma));
    return use.ok() ? use->used : Bytes(-1);
  }

  absl::StatusOr<device::Memory> Create(int extents) {
    return driver_->Create(device::Placement::Host(kNuma),
                           kArenaExtent * extents);
  }

  testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
};

TEST_F(ArenaTest, NothingIsMadeAheadWithoutReadyBytes) {
  const auto arena = Make(0);
  EXPECT_EQ(arena->Take(kHost, kArenaExtent), std::nullopt);
  EXPECT_EQ(Used(), Bytes(0));
}

TEST_F(ArenaTest, TakenMemoryIsReplaced) {
  const auto arena = Make(2);
  const auto first = arena->Take(kHost, kArenaExtent);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(*first->fd);
  Expect(*arena, 2);
  EXPECT_EQ(Used(), kArenaExtent * 3);
  EXPECT_THAT(driver_->Release(first->memory), IsOk());
}

TEST_F(ArenaTest, OnlyHostMemoryOfTheStandardSizeIsReady) {
  const auto arena = Make(2);
  EXPECT_FALSE(arena->Take(kHost, kArenaExtent / 2).has_value());
  EXPECT_FALSE(arena->Take({PoolKind::kGpu, 0}, kArenaExtent).has_value());
  EXPECT_FALSE(arena->Take({PoolKind::kHost, 1}, kArenaExtent).has_value());
}

TEST_F(ArenaTest, ReadyMemoryIsReleasedForAnotherSize) {
  const auto arena = Make(3);
  ASSERT_THAT(Create(2).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(arena->MakeRoom(kHost));
  EXPECT_FALSE(arena->MakeRoom(kHost));
  const auto other = Create(2);
  ASSERT_THAT(other, IsOk());
  Expect(*arena, 0);  // until there is room again
  ASSERT_THAT(driver_->Release(*other), IsOk());
  arena->Refill();
  Expect(*arena, 3);
}

TEST_F(ArenaTest, ANodeIsFilledAsFarAsItHasRoom) {
  const auto other = Create(3);
  ASSERT_THAT(other, IsOk());
  Arena arena(driver_.get(), {.nodes = {kNuma},
                              .ready = kArenaExtent * kHeld,
                              .extent = kArenaExtent});
  Expect(arena, 1);
  ASSERT_THAT(driver_->Release(*other), IsOk());
  arena.Refill();
  Expect(arena, kHeld);
}

TEST_F(ArenaTest, TheDestructorReleasesAllMemory) {
  Make(kHeld).reset();
  EXPECT_EQ(Used(), Bytes(0));
}

}  // namespace
}  // namespace sluice::daemon
