// What other users write to a simulated node's state, and who believes it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/device/sim/ledger.h"
#include "kernels/device/sim/state.h"
#include "tests/device/sim_fixture.h"
#include "tests/support/child.h"

namespace sluice::device {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class SimBooks : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    const int fd = open(directory_.File("node.state").c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    void* page = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(page, MAP_FAILED);
    state_ = static_cast<SharedState*>(page);
  }
  void TearDown() override { munmap(state_, sizeof(SharedState)); }

  std::unique_ptr<Driver> OpenOwned() const {
    auto driver = OpenOwnedSimDriver(directory_.path());
    EXPECT_THAT(driver, IsOk());
    return driver.ok() ? *std::move(driver) : nullptr;
  }

  SharedState* state_ = nullptr;
};

// Wrong once: each of these ended the daemon or kept it from making anything.
TEST_F(SimBooks, WhoMakesTheMemoryBelievesNothingThatIsWrittenLater) {
  const auto owner = OpenOwned();
  state_->granularity = 0;
  state_->host_memory = 0;
  state_->gpu_count = 1u << 31;
  state_->gpus[0].memory = 0;
  state_->gpus[0].lost = 1;
  state_->gpu_used[0] = INT64_MAX;
  state_->host_used = INT64_MAX;
  state_->slots_high_water = UINT32_MAX;
  std::memset(state_->slots, 0xff, sizeof(state_->slots));
  std::memset(state_->inodes, 0xff, sizeof(state_->inodes));
  std::memset(static_cast<void*>(state_->failures), 'C',
              sizeof(state_->failures));
  state_->failures_armed = 1;
  std::memset(&state_->mutex, 0xff, sizeof(state_->mutex));
  const auto memory = owner->Create(kGpu0, MiB(8));
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT(owner->Create(kGpu0, KiB(64)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("8 MiB of 8 MiB used")));
  ASSERT_THAT(owner->Create(kHost0, MiB(16)), IsOk());
  EXPECT_EQ(owner->Usage(kGpu0)->used, MiB(8));
  EXPECT_EQ(owner->Usage(kHost1)->total, MiB(16));
  ASSERT_THAT(owner->Release(*memory), IsOk());
  EXPECT_EQ(owner->Usage(kGpu0)->used, Bytes(0));
}

// Wrong once: whoever held the lock of the state held the daemon.
TEST_F(SimBooks, WhoMakesTheMemoryWaitsForNobodysLock) {
  const auto owner = OpenOwned();
  ASSERT_EQ(pthread_mutex_lock(&state_->mutex), 0);
  std::atomic<bool> done{false};
  std::thread other([&] {
    EXPECT_THAT(owner->Create(kGpu0, MiB(1)), IsOk());
    EXPECT_THAT(owner->Usage(kGpu0), IsOk());
    done = true;
  });
  for (int i = 0; i < 500 && !done; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(done);
  pthread_mutex_unlock(&state_->mutex);
  other.join();
}

// Wrong once: such an entry took memory from whoever made the next.
TEST_F(SimBooks, WhatTheStateSaysOfHoldersIsNotBelieved) {
  const auto holder = testing::Child::Fork([] { pause(); });
  state_->slots[0] = {.size = MiB(3).count(), .kind = 0, .ordinal = 0};
  state_->slots[0].kind = static_cast<uint32_t>(kGpu0.kind);
  state_->slots[0].holders[0] = {.start_time = ProcessStartTime(holder->pid()),
                                 .pid = holder->pid(),
                                 .count = 1};
  state_->inodes[0] = 1'000'000;
  state_->slots_high_water = 1;
  const auto owner = OpenOwned();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto outside, owner->HeldOutside());
  EXPECT_THAT(outside, ::testing::IsEmpty());
  EXPECT_EQ(owner->Usage(kGpu0)->used, Bytes(0));
  EXPECT_THAT(owner->Create(kGpu0, MiB(8)), IsOk());
}

TEST_F(SimBooks, AStateThatMakesNoSenseIsNotOpened) {
  const auto refused = [&] {
    return OpenSimDriver(directory_.path()).status();
  };
  state_->gpus[1].link = 1u << 30;
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("is damaged")));
  state_->gpus[1].link = 0;
  EXPECT_THAT(refused(), IsOk());
  state_->granularity = 0;
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace sluice::device
